#!/bin/sh
# run.sh BUILD [FULL]: runs the tests of tests/gpu on the kernels that nvcc compiled, in two shards side by side. Without FULL, the tests of
# quick.txt are left out. The last line counts the tests.
set -u
program=$1/tests/ptx/ptx_cuda
here=$(dirname "$0")
filter=$(grep -v '^#' "$here/skipped.txt" | grep . | paste -sd: -)
[ "${2:-}" = 1 ] || filter=$filter:$(grep -v '^#' "$here/slow.txt" | grep . | paste -sd: -)
reports=$1/ptx-reports
mkdir -p "$reports"
status=0
for shard in 0 1; do
  (ORRERY_PTX_COUNTERS="$reports/counters_$shard.txt" GTEST_TOTAL_SHARDS=2 GTEST_SHARD_INDEX=$shard \
    timeout 1800 "$program" --gtest_filter="*:-$filter" --gtest_brief=1 >"$reports/log_$shard.txt" 2>&1; echo $? >"$reports/status_$shard") &
done
wait
passed=0
failed=0
for shard in 0 1; do
  [ "$(cat "$reports/status_$shard")" = 0 ] || { status=1; cat "$reports/log_$shard.txt"; }
  passed=$((passed + $(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$reports/log_$shard.txt" | tail -1)))
  failed=$((failed + $(grep -c '^\[  FAILED  \].*ms)$' "$reports/log_$shard.txt")))
done
echo "$passed passed, $failed failed on compiled kernels"
exit $status
