#!/bin/sh
# kernel_tags.sh COMPILER PROGRAM: whether a library whose host code COMPILER has compiled finds every kernel by name. The host code of each
# file of kernels is compiled as the library compiles it. The names that launches look for (kernel_name(), device/launch.h) are symbols of the
# objects; PROGRAM, the tests in emulation, compares them with its own kernels.
set -eu
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for source in cuda/kernels/*.cu; do
  "$1" -std=c++17 -x c++ -Wno-unknown-pragmas -I. -Iinclude -c "$source" -o "$work/$(basename "$source" .cu).o"
done
nm "$work"/*.o | sed -n 's/.* _ZTS\(N6orrery4cuda9KernelTag.*\)/\1/p' | sort -u >"$work/tags"
echo "$(grep -c . "$work/tags") kernels"
ORRERY_KERNEL_TAGS="$work/tags" "$2" --gtest_filter=GpuKernels.AnotherCompilersNamesFindThem
