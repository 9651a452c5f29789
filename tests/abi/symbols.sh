#!/bin/sh
# symbols.sh LIBRARY STATIC HEADER CC: what the linker and the loader see of the library.
#
#   exports   exactly the functions that orrery.h declares, all of version ORRERY_0
#   needs     only the C, math, C++ and compiler's own libraries
#   calls     nothing that ends the process, prints, reads the environment or installs handlers
#   globals   no writable data: two runtimes in one process share nothing
#
# With the CUDA backend the shared library holds NVIDIA's runtime too, the archive our objects alone: those keep to the same rules, and
# what the runtime calls beyond them is a list of its own. What nvcc adds to a .cu file registers its kernels: their handles, and the end of
# the registration when the library is unloaded (atexit, in a library, is of that library); and bodies on the host's side of device
# functions, which end the process (exit) and which nothing calls. And one file of ours opens a library, cuBLAS.
set -eu
library=$1 static=$2 header=$3 cc=$4
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
nm -A --undefined-only "$static" 2>/dev/null | sed -n 's/^[^:]*:\([^:]*\): *[A-Za-z] \(.*\)/\1 \2/p' >"$work/ours"   # object, name
cuda=''
! grep -q ' __cudaRegisterFatBinary$' "$work/ours" || cuda=yes
grep -q ' memcpy$' "$work/ours" || fail "what the objects of $static call cannot be read"
nm -D --undefined-only "$library" | awk '{ print $2 }' | sed 's/@.*//' >"$work/all"
if [ $cuda ]; then
  grep -vE '\.cu\.o (atexit|exit)$|^cublas\.cpp\.o dl(open|sym)$' "$work/ours" >"$work/ours_alone"
  grep -vxE 'exit|dlopen|dlsym|fwrite|getenv|gettimeofday|kill|pthread_kill|setenv' "$work/all" >"$work/all_alone"
  mv "$work/ours_alone" "$work/ours"
  mv "$work/all_alone" "$work/all"
fi
while read -r names; do
  ! grep -E " ($names)\$" "$work/ours" && ! grep -xE "$names" "$work/all" || fail "the library may not use what stands above"
done <"$work/forbidden"

# Variables in .data and .bss, plain and per thread, of every object in the archive.  (.data.rel.ro is constant once loaded;
# DW.ref is made by the compiler for exceptions.)  One is allowed: the paths that this machine can run, found once.
objdump -t "$static" | awk -F '\t' '
  /file format/ { object = $1 }
  NF == 2 && match($1, / \.(data|bss|tdata|tbss)[^ ]*$/) && $1 !~ /\.data\.rel\.(ro|local\.DW\.ref)/ {
    split($2, field, " ")
    if (field[1] ~ /^0+$/ || field[2] ~ /available_pathsEvE9available$/) next
    if (object ~ /\.cu\.o:/ && field[length(field)] ~ /__device_stub__|__cudaFatCubinHandle$/) next
    sub(/:.*/, "", object)
    print object, field[length(field)], "size 0x" field[1]
  }' >"$work/globals"
[ ! -s "$work/globals" ] || fail "writable globals: $(cat "$work/globals")"
readelf -SW "$static" | grep -q '\.text' || fail "$static holds no code"
[ $bad = 0 ] && echo "$(wc -l <"$work/exported") functions${cuda:+, CUDA}, needs $(tr '\n' ' ' <"$work/needed")"
exit $bad
