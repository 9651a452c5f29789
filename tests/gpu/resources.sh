#!/bin/sh
# resources.sh ARCHITECTURE...: compiles every kernel for these GPUs (86, 89, ...), with warnings as errors. It prints each kernel's
# resources on an SM: registers, static shared memory, bytes spilled. A kernel that spills is a failure, and so is machine code that falls
# behind the bounds of sass.py.
# resources.sh --log FILE: reads the same figures from the log of a build with -DORRERY_PTXAS_FLAGS=-v.
# As the build does (cuda/archive.cmake): nvcc makes PTX of each file once, and ptxas makes code of that for each GPU.
set -u
cd "$(dirname "$0")/../.." || exit 2

report() {
  c++filt | awk '
    /Compiling entry function/ {
      split($0, part, "\047"); kernel = part[2]; architecture = part[4]
      gsub(/orrery::(cuda::)?|[a-z_]+_cu::/, "", kernel); gsub(/\([A-Z][A-Za-z]*\)/, "", kernel); sub(/\(.*$/, "", kernel); sub(/^void /, "", kernel)
    }
    /spill stores/ { spilled = $5 + $9 }
    /Used [0-9]+ registers/ {
      shared = 0
      for (i = 1; i <= NF; i++) { if ($i == "registers,") registers = $(i - 1); if ($i ~ /^smem/) shared = $(i - 2) }
      printf "%-7s %-60s %4d registers %6d bytes shared %5d spilled\n", architecture, kernel, registers, shared, spilled
      if (spilled > 0) failed = 1
    }
    END { exit failed }'
}

# machine BUILD ARCHITECTURE: what the machine code must show (sass.py).
machine() {
  if command -v python3 >/dev/null; then python3 tests/gpu/sass.py "$1" "$2"; else echo "skipped: sass.py needs Python 3"; fi
}

if [ "$1" = --log ]; then
  report <"$2" || exit
  machine "$(dirname "$2")" 86
  exit
fi
work=$(mktemp -d) || exit 2
mkdir "$work/ptx"
trap 'rm -rf "$work"' EXIT
status=0
for source in cuda/kernels/*.cu; do
  nvcc -std=c++17 -O3 -I. -Iinclude -ptx -arch=compute_80 -diag-suppress=554 -Werror all-warnings -o "$work/text.ptx" "$source" || status=1
  for architecture in "$@"; do
    if ptxas -arch="sm_$architecture" -O3 -v "$work/text.ptx" -o "$work/ptx/$(basename "$source" .cu).sm_$architecture.cubin" >"$work/log" 2>&1; then
      report <"$work/log" || status=1
    else
      cat "$work/log"
      status=1
    fi
  done
done
for architecture in "$@"; do
  machine "$work" "$architecture" || status=1
done
[ $status -eq 0 ] || echo "a kernel does not compile, spills, or has worse machine code than it had" >&2
exit $status
