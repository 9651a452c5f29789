#!/bin/sh
# run.sh BUILD SECONDS TARGET...: fuzzes each target from what is committed and what was grown before in BUILD/corpus, and
# prints a table of all. The exit status is 0 only if nothing was found.
#
# Rates are of executions: exec/s of wall time, exec/cpu-s of processor time, which does not depend on what else the machine does. Both count
# the reading of the corpus. A closing line names the targets below 200 a second of processor time.
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

# cpu_seconds FILE: processor time of the programs that had ended when `times` wrote FILE, which a subshell could not.
cpu_seconds() {
  awk 'NR == 2 { for (i = 1; i <= 2; ++i) { split($i, part, /[ms]/); sum += 60 * part[1] + part[2] } printf "%.2f", sum }' "$1"
}

# row LOG TARGET: what libFuzzer said last, as a row of the table. The log's last line is the target's processor time.
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
    /^processor seconds:/ { cpu = $3 }
    /Test unit written to/ { ++found }
    END { printf "%-10s %8d %9d %16s %13d %8d %10d %6d\n", target, edges, features, corpus, runs, rate, (cpu > 0 ? runs / cpu : 0), found }' "$1"
}

failed=0
for target in "$@"; do
  echo "== fuzz_$target, $seconds s"
  mkdir -p "$build/corpus/$target"
  dictionary=''
  [ ! -f "$here/$target.dict" ] || dictionary=-dict=$here/$target.dict
  # Inputs are not weighed by how rare their features are (-entropic): that costs a fifth of the time of targets with many features.
  times >"$TMPDIR/before"
  # shellcheck disable=SC2086
  ASAN_OPTIONS=quarantine_size_mb=16:malloc_context_size=3:${ASAN_OPTIONS:-} \
    "$build/tests/fuzz/fuzz_$target" -max_total_time="$seconds" -print_final_stats=1 -print_funcs=0 -timeout=20 -rss_limit_mb=2048 -entropic=0 \
    -artifact_prefix="$build/$target-" $dictionary ${FUZZ_OPTIONS:-} "$build/corpus/$target" "$here/corpus/$target" \
    "$build/tests/fuzz/corpus/$target" >"$build/fuzz-$target.log" 2>&1
  status=$?
  times >"$TMPDIR/after"
  cpu_seconds "$TMPDIR/after" | awk -v before="$(cpu_seconds "$TMPDIR/before")" '{ printf "processor seconds: %.2f\n", $1 - before }' >>"$build/fuzz-$target.log"
  tail -n 3 "$build/fuzz-$target.log"
  if [ $status -ne 0 ]; then
    failed=1
    grep -E 'ERROR|broken promise|Test unit written to|SUMMARY' "$build/fuzz-$target.log"
  fi
done

echo
printf '%-10s %8s %9s %16s %13s %8s %10s %6s\n' target edges features "corpus (n/bytes)" executions "exec/s" "exec/cpu-s" found
for target in "$@"; do row "$build/fuzz-$target.log" "$target"; done | tee "$build/fuzz-table.txt"
awk '{ runs += $5; found += $8; if ($7 < 200) slow = slow " " $1 }
  END { printf "%-10s %8s %9s %16s %13d %8s %10s %6d\n", "all", "", "", "", runs, "", "", found
        if (slow) print "below 200 executions a second of processor time:" slow }' "$build/fuzz-table.txt"
exit $failed
