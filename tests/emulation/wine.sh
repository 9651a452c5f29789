#!/bin/sh
# wine.sh PROGRAM.exe ARGUMENTS...: runs a Windows program under Wine, with a Windows of its own in BUILD/wine (ORRERY_WINE names another
# folder) and without words of Wine's.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export WINEPREFIX="${ORRERY_WINE:-$here/../../build-windows/wine}" WINEDEBUG=-all WINEDLLOVERRIDES='mscoree,mshtml=' LANG=C.UTF-8
mkdir -p "$WINEPREFIX"
# Where programs find orrery.dll; ORRERY_WINE_PATH names another folder, or none.
export WINEPATH="${ORRERY_WINE_PATH-z:$(cd "$WINEPREFIX/.." && pwd)/capi}"
# GoogleTest for Windows takes a path without a drive for a relative one.
case ${GTEST_OUTPUT-} in xml:/*) export GTEST_OUTPUT="xml:z:${GTEST_OUTPUT#xml:}" ;; esac
wine=/usr/lib/wine/wine64
[ -x "$wine" ] || wine=$(command -v wine64 || command -v wine)
# The first start makes the prefix; tests that start together would make it twice.
if [ ! -e "$WINEPREFIX/made" ]; then
  exec 9>"$WINEPREFIX/lock"
  flock 9
  [ -e "$WINEPREFIX/made" ] || { "$wine" wineboot -i >/dev/null 2>&1 </dev/null 9>&-; touch "$WINEPREFIX/made"; }
  exec 9>&-
fi
exec "$wine" "$@"
