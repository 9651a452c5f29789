#!/bin/sh
# header.sh SOURCE COMPILER...: orrery.h and orrery_lab.h must compile alone, with every compiler there is, as C99 and C++17 to the letter,
# without implicit padding in any struct (-Wpadded), with 64-bit pointers and, where the compiler knows them, 32-bit ones.
set -u
include=$1/include tests=$1/tests/abi
shift
bad=0
tried=0
check() {
  tried=$((tried + 1))
  "$@" -Wall -Wextra -Wpadded -Werror -I"$include" -fsyntax-only || { echo "FAILED: $*"; bad=1; }
}
for compiler in "$@" gcc clang; do
  command -v "$compiler" >/dev/null || continue
  for header in orrery orrery_lab; do
    check "$compiler" -std=c99 -pedantic-errors -Wstrict-prototypes -x c "$include/$header.h"
    check "$compiler" -std=c11 -pedantic-errors -x c "$include/$header.h"
  done
  check "$compiler" -std=c99 -pedantic-errors "$tests/header_test.c"
  check "$compiler" -std=c++17 -pedantic-errors -Wzero-as-null-pointer-constant -Wold-style-cast -x c++ "$tests/header_test.cpp"
  # Freestanding: the 32-bit C library need not be installed.
  if echo 'int x;' | "$compiler" -m32 -ffreestanding -fsyntax-only -x c - 2>/dev/null; then
    check "$compiler" -m32 -ffreestanding -std=c99 -pedantic-errors -x c "$include/orrery_lab.h"
  fi
done
[ $tried -ge 4 ] || { echo "FAILED: no compiler was found"; bad=1; }
# The check itself must be able to fail.
if printf '#include <stdint.h>\nstruct s { uint32_t a; uint64_t b; };\n' |
  "$1" -std=c99 -Wpadded -Werror -fsyntax-only -x c - 2>/dev/null; then
  echo "FAILED: $1 does not see padding"
  bad=1
fi
[ $bad = 0 ] && echo "$tried compilations"
exit $bad
