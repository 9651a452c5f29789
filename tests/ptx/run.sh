#!/bin/sh
# run.sh BUILD [EXTENT]: runs the tests of tests/gpu on the kernels that nvcc compiled, in two shards side by side; then compares kernels with their
# source, bit by bit (exact.txt). EXTENT "quick": every fourth of the tests, and the comparison; "full": once more, with warps and blocks in
# another order. The last line counts the tests.
set -u
program=$1/tests/ptx/ptx_cuda
here=$(dirname "$0")
skipped=$(grep -v '^#' "$here/skipped.txt" | grep . | paste -sd: -)
compared='GpuKv.*:GpuRows*:GpuLowRank.ByHead*:GpuKeyCodes.*:GpuTopKeys.SeveralJobs:GpuTopKeys.CountsWhatIsCommon:GpuFetch.PagesAndTokens:GpuFetch.OneSetForAllHeads:GpuFetch.LowestScoresAreReplaced:GpuFetch.KeysNearTheBest:GpuFetchChanged.*:GpuFusions.Att*:GpuFusions.Other*:GpuRecurrent.Short*:GpuExperts.Sums*'
compared=$compared:'Types/GpuMatmul.EveryWeight*:Types/GpuMatmul.Tiles*:GpuMatmulFloats.*:GpuShortlist.Tails:GpuCublasProducts.*:GpuFormats.Embeddings*:GpuFormats.BlocksOfTheFile*'
reports=$1/ptx-reports
rm -rf "$reports"
mkdir -p "$reports"
status=0
extent=${2:-}
shards=2
[ "$extent" = quick ] && shards=8

# one NAME FILTER: a run of the program, its report in files of that name.
one() {
  ORRERY_PTX_COUNTERS="$reports/counters_$1.txt" timeout 1800 "$program" --gtest_filter="$2" --gtest_brief=1 >"$reports/log_$1.txt" 2>&1
  echo $? >"$reports/status_$1"
}
# both SEED: the tests, in two shards.
both() {
  for shard in 0 1; do
    (export ORRERY_PTX_SEED="$1" GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$((shard * shards / 2)); one "seed$1_$shard" "*:-$skipped") &
  done
  wait
}
both 0
(export ORRERY_PTX_COMPARE=1; one compared "$compared")
[ "$extent" = full ] && both 7

passed=0
failed=0
for log in "$reports"/log_*.txt; do
  name=${log#"$reports/log_"}
  [ "$(cat "$reports/status_${name%.txt}")" = 0 ] || { status=1; cat "$log"; }
  n=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log" | tail -1)
  passed=$((passed + ${n:-0}))
  failed=$((failed + $(grep -c '^\[  FAILED  \].*ms)$' "$log")))
done
echo "$passed passed, $failed failed on compiled kernels"
exit $status
