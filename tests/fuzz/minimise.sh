#!/bin/sh
# minimise.sh BUILD TARGET...: writes corpus/TARGET.tar.gz anew: of what is in it and what was grown in BUILD/corpus/TARGET,
# the inputs that reach something which neither the named inputs in corpus/TARGET nor a shorter input reaches
# (libFuzzer's merge); at most MOST_BYTES of them, the shortest first. More folders to look in: GROWN="DIR ...", with
# a folder for each target in it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
shift
most=${MOST_BYTES:-200000}
memory=${TMPDIR:-/tmp}
[ -n "${TMPDIR:-}" ] || [ ! -w /dev/shm ] || memory=/dev/shm
TMPDIR=$(mktemp -d "$memory/orrery-fuzz-XXXXXX")  # libFuzzer ends without tidying up
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

for target in "$@"; do
  work=$(mktemp -d)
  mkdir "$work/merged" "$work/kept"
  cp "$here/corpus/$target"/* "$work/merged/" 2>/dev/null || true
  sources="$build/tests/fuzz/corpus/$target"
  for folder in "$build/corpus" ${GROWN:-}; do
    [ ! -d "$folder/$target" ] || sources="$sources $folder/$target"
  done
  # shellcheck disable=SC2086
  "$build/tests/fuzz/fuzz_$target" -merge=1 -timeout=20 -rss_limit_mb=2048 "$work/merged" $sources >"$work/log" 2>&1 ||
    { tail -n 5 "$work/log"; exit 1; }
  # What has a name stays where it is; the rest takes its content's.
  for name in "$here/corpus/$target"/*; do rm -f "$work/merged/$(basename "$name")"; done
  total=0
  ls -Sr "$work/merged" | while read -r file; do
    bytes=$(wc -c <"$work/merged/$file")
    total=$((total + bytes))
    [ "$total" -le "$most" ] || break
    cp "$work/merged/$file" "$work/kept/$(printf %.12s "$file")"
  done
  tar -C "$work/kept" --sort=name --owner=0 --group=0 --numeric-owner --mode=644 --mtime=@0 -cf - . |
    gzip -9n >"$here/corpus/$target.tar.gz"
  printf '%-10s %6d inputs %8d bytes, packed %7d; %s\n' "$target" "$(ls "$work/kept" | wc -l)" \
    "$(cat "$work/kept"/* 2>/dev/null | wc -c)" "$(wc -c <"$here/corpus/$target.tar.gz")" \
    "$(grep -o 'MERGE-OUTER: .*new.*' "$work/log" | tail -n 1)"
  rm -rf "$work"
done
