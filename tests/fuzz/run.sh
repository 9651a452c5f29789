#!/bin/sh
# run.sh BUILD SECONDS TARGET...: fuzzes each target from what is committed and what was grown before in BUILD/corpus, and
# prints a table of all. The exit status is 0 only if nothing was found.
#
# A target's log stands in BUILD/fuzz-TARGET.log, the input of a fault in BUILD/TARGET-crash-..., what was grown in
# BUILD/corpus/TARGET. FUZZ_OPTIONS: more of libFuzzer's, e.g. -max_len=128.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd) || exit 2
seconds=$2
shift 2
# Targets of files write them: to memory where there is a file system for that. libFuzzer ends without tidying up.
memory=${TMPDIR:-/tmp}
[ -n "${TMPDIR:-}" ] || [ ! -w /dev/shm ] || memory=/dev/shm
TMPDIR=$(mktemp -d "$memory/orrery-fuzz-XXXXXX") || exit 2
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

# row LOG TARGET: what libFuzzer said last, as a row of the table.
row() {
  awk -v target="$2" '
    /^#[0-9]+/ {
      for (i = 1; i < NF; ++i) {
        if ($i == "cov:") edges = $(i + 1)
        if ($i == "ft:") features = $(i + 1)
        if ($i == "corp:") corpus = $(i + 1)
      }
    }
    /^stat::number_of_executed_units:/ { runs = $2 }
    /^stat::average_exec_per_sec:/ { rate = $2 }
    /Test unit written to/ { ++found }
    END { printf "%-10s %8d %9d %16s %13d %8d %6d\n", target, edges, features, corpus, runs, rate, found }' "$1"
}

failed=0
for target in "$@"; do
  echo "== fuzz_$target, $seconds s"
  mkdir -p "$build/corpus/$target"
  dictionary=''
  [ ! -f "$here/$target.dict" ] || dictionary=-dict=$here/$target.dict
  # shellcheck disable=SC2086
  "$build/tests/fuzz/fuzz_$target" -max_total_time="$seconds" -print_final_stats=1 -timeout=20 -rss_limit_mb=2048 \
    -artifact_prefix="$build/$target-" $dictionary ${FUZZ_OPTIONS:-} "$build/corpus/$target" "$here/corpus/$target" \
    "$build/tests/fuzz/corpus/$target" >"$build/fuzz-$target.log" 2>&1
  status=$?
  tail -n 3 "$build/fuzz-$target.log"
  if [ $status -ne 0 ]; then
    failed=1
    grep -E 'ERROR|broken promise|Test unit written to|SUMMARY' "$build/fuzz-$target.log"
  fi
done

echo
printf '%-10s %8s %9s %16s %13s %8s %6s\n' target edges features "corpus (n/bytes)" executions "exec/s" found
for target in "$@"; do row "$build/fuzz-$target.log" "$target"; done | tee "$build/fuzz-table.txt"
awk '{ runs += $5; found += $7 } END { printf "%-10s %8s %9s %16s %13d %8s %6d\n", "all", "", "", "", runs, "", found }' "$build/fuzz-table.txt"
exit $failed
