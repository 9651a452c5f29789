#!/bin/sh
# windows_needs.sh DLL: the DLL imports from the system's own libraries alone, and exports exactly the functions of the headers.
set -eu
dll=$1
headers=$(dirname "$0")/../../include
needs=$(x86_64-w64-mingw32-objdump -p "$dll" | sed -n 's/.*DLL Name: //p' | tr 'A-Z' 'a-z' | sort)
for name in $needs; do
  case $name in
    kernel32.dll | advapi32.dll | msvcrt.dll | ntdll.dll | bcrypt.dll | psapi.dll | api-ms-win-*.dll | ucrtbase.dll) ;;
    *) echo "FAILED: $dll needs $name"; exit 1 ;;
  esac
done
exports() { x86_64-w64-mingw32-objdump -p "$dll" | sed -n '/\[Ordinal\/Name Pointer\] Table/,/^$/p' | sed -n 's/.* \([A-Za-z_][A-Za-z_0-9]*\)$/\1/p' | grep -v '^Table$' | sort; }
declared() { sed -n 's/.*ORRERY_API[^(]*[ *]\(orrery_[a-z0-9_]*\)(.*/\1/p' "$headers"/orrery*.h | sort; }
[ "$(exports)" = "$(declared)" ] || { echo "FAILED: exports differ from the headers"; exports >/tmp/e.$$; declared | diff /tmp/e.$$ - || true; rm -f /tmp/e.$$; exit 1; }
echo "$dll: $(exports | wc -l) functions; needs" $needs
