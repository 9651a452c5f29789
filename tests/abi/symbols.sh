#!/bin/sh
# symbols.sh LIBRARY STATIC HEADER CC OBJECTS: what the linker and the loader see of the library. OBJECTS is an archive of what STATIC is made
# of; STATIC itself, in a build without operators new of the library's own.
#
#   exports   exactly the functions that orrery.h and orrery_lab.h declare, all of version ORRERY_0
#   C++       with operators of its own, the library holds all C++ code that it runs: no operator new or delete, and nothing else of a C++
#             library, is looked up outside. So what its operator new has allocated, its operator delete gives back, and the other way round
#   needs     only the C, math, C++ and compiler's own libraries
#   calls     nothing that ends the process, prints, reads the environment or installs handlers
#   globals   no writable data but what is named below: two runtimes in one process share the allocator, and an opened device
#
# With the CUDA backend the shared library holds NVIDIA's runtime too, the archive our objects alone: those keep to the same rules, and
# what the runtime calls beyond them is a list of its own. What nvcc adds to a .cu file registers its kernels: their handles, and the end of
# the registration when the library is unloaded (atexit, in a library, is of that library); and bodies on the host's side of device
# functions, which end the process (exit) and which nothing calls. And one file of ours opens a library, cuBLAS.
set -eu
library=$1 static=$2 header=$3 cc=$4 objects=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0
fail() { echo "FAILED: $*"; bad=1; }
LC_ALL=C
export LC_ALL

# Declarations: the preprocessed header, a statement a line; types of functions have no name before their parenthesis.
"$cc" -E -P "$header" | tr '\n' ' ' | tr ';{' '\n\n' | grep -v typedef | grep -o 'orrery_[a-z0-9_]* *(' | tr -d ' (' |
  sort -u >"$work/declared"
[ "$(wc -l <"$work/declared")" -gt 40 ] || fail "found only $(wc -l <"$work/declared") functions in $header"
nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' >"$work/exported_with_version"
sed 's/@.*//' "$work/exported_with_version" | sort >"$work/exported"
diff "$work/declared" "$work/exported" >"$work/diff" || fail "declared (<) and exported (>) differ: $(cat "$work/diff")"
! grep -v '@@ORRERY_0$' "$work/exported_with_version" || fail "exported without the version ORRERY_0"

own=''
[ "$objects" = "$static" ] || own=yes
if [ $own ]; then
  # Names of C++ begin with _Z; __cxa_ and __gxx_ names are of its run-time library, but for three of the C library. _ZGTt names are weak,
  # and of transactional memory, which nobody compiles for.
  cxx='^(_Z|__cxa_|__gxx_|__dynamic_cast)'
  c='^(__cxa_finalize|__cxa_atexit|__cxa_thread_atexit_impl|_ZGTt.*)$'
  nm -D --undefined-only "$library" | awk '{ print $NF }' | sed 's/@.*//' >"$work/outside"
  [ -s "$work/outside" ] || fail "what $library looks up cannot be read"
  ! grep -E "$cxx" "$work/outside" | grep -vE "$c" || fail "the shared library looks C++ up outside"
  nm --undefined-only "$static" | awk 'NF == 2 { print $2 }' >"$work/outside"
  ! grep -E "$cxx" "$work/outside" | grep -vE "$c" || fail "the static library looks C++ up outside"
  nm --defined-only --extern-only "$static" | awk 'NF == 3 { print $3 }' | sort >"$work/visible"
  diff "$work/declared" "$work/visible" >"$work/diff" || fail "declared (<) and visible in the static library (>) differ: $(cat "$work/diff")"
  # The test would find them: the objects alone have both.
  nm "$objects" 2>/dev/null | grep -q ' T _Znwm$' || fail "$objects has no operator new"
  nm "$objects" 2>/dev/null | grep -q ' U __cxa_throw$' || fail "$objects throws nothing"
fi

readelf -dW "$library" >"$work/dynamic"
sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' "$work/dynamic" >"$work/needed"
! grep -vxE 'libc\.so\.6|libm\.so\.6|libstdc\+\+\.so\.6|libgcc_s\.so\.1|ld-linux[-a-z0-9_]*\.so\.[0-9]' "$work/needed" ||
  fail "needs other libraries"
grep -q 'SONAME.*\[liborrery\.so\.[0-9]*\]' "$work/dynamic" || fail "no SONAME with the major version"
! grep -E 'RPATH|RUNPATH|TEXTREL' "$work/dynamic" || fail "looks for libraries by itself, or is relocated in its code"
readelf -lW "$library" | awk '/GNU_STACK/ { exit $7 ~ /E/ }' || fail "wants an executable stack"

cat >"$work/forbidden" <<'NAMES'
abort
_?_?exit|_Exit|quick_exit|atexit|on_exit
__assert_fail|__assert
raise|kill|tgkill|pthread_kill|signal|sigaction|sigaltstack
(v|f|vf|d|vd)?printf|__(v|f|vf|d|vd)?printf_chk|f?puts|putchar|f?putc|fwrite|perror|psignal|syslog
stdin|stdout|stderr
_ZSt4c(out|err|log|in)|_ZSt5wc(out|err|in)|_ZNSt8ios_base4InitC1Ev
(secure_)?getenv|setenv|putenv|environ|__environ
setlocale|uselocale|rand|srand|gettimeofday|system|popen|fork|v?fork|exec[vlpe]+
dlopen|dlsym
NAMES
nm -A --undefined-only "$objects" 2>/dev/null | sed -n 's/^[^:]*:\([^:]*\): *[A-Za-z] \(.*\)/\1 \2/p' >"$work/ours"   # object, name
cuda=''
! grep -q '^library.cpp.o dlopen$' "$work/ours" || cuda=yes
grep -q ' memcpy$' "$work/ours" || fail "what the objects of $objects call cannot be read"
nm -D --undefined-only "$library" | awk '{ print $2 }' | sed 's/@.*//' >"$work/all"
if [ $own ]; then   # what the C++ library inside calls: std::terminate and its message, locales
  grep -vxE '__assert_fail|abort|fputs|fputc|putc|fwrite|stderr|getenv|secure_getenv|uselocale|setlocale' "$work/all" >"$work/all_alone"
  mv "$work/all_alone" "$work/all"
fi
if [ $cuda ]; then
  grep -vE '^library\.cpp\.o dl(open|sym)$' "$work/ours" >"$work/ours_alone"
  grep -vxE 'dlopen|dlsym' "$work/all" >"$work/all_alone"
  mv "$work/ours_alone" "$work/ours"
  mv "$work/all_alone" "$work/all"
fi
while read -r names; do
  ! grep -E " ($names)\$" "$work/ours" && ! grep -xE "$names" "$work/all" || fail "the library may not use what stands above"
done <"$work/forbidden"

# Variables in .data and .bss, plain and per thread, of every object in the archive.  (.data.rel.ro is constant once loaded;
# DW.ref is made by the compiler for exceptions.)  These are allowed: the paths that this machine can run, found once; the allocator,
# which is one for the process as the C library's is, the account that a thread works for, and the number of accounts; and with the CUDA
# backend the list of opened devices and its lock, as the runtimes of a process share a context and the compiled kernels.
objdump -t "$objects" | awk -F '\t' '
  /file format/ { object = $1 }
  NF == 2 && match($1, / \.(data|bss|tdata|tbss)[^ ]*$/) && $1 !~ /\.data\.rel\.(ro|local\.DW\.ref)/ {
    split($2, field, " ")
    if (field[1] ~ /^0+$/ || field[2] ~ /available_pathsEvE9available$/) next
    if (object ~ /blocks_mimalloc\.c\.o:/ || field[2] ~ /12_GLOBAL__N_1(15current_account|8accounts)E$/) next
    if (object ~ /gpu\.cpp\.o:/ && field[2] ~ /12_GLOBAL__N_1(12opened_mutex|10all_opened)E$/) next
    sub(/:.*/, "", object)
    print object, field[length(field)], "size 0x" field[1]
  }' >"$work/globals"
[ ! -s "$work/globals" ] || fail "writable globals: $(cat "$work/globals")"
readelf -SW "$objects" | grep -q '\.text' || fail "$static holds no code"
[ $bad = 0 ] && echo "$(wc -l <"$work/exported") functions${cuda:+, CUDA}, needs $(tr '\n' ' ' <"$work/needed")"
exit $bad
