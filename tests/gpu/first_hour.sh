#!/bin/sh
# first_hour.sh [FOLDER]: the first hour with a GPU, on a machine that has its driver and nothing else. `make gpu-first-hour` packs this
# script with the programs that it runs; FOLDER (here, if none is named) gets their output. Each part takes less than nine minutes and leaves
# PART.status; run again, the script goes on with the parts that have none. The last lines are a table, ready for tests/bench/results.
#
# Environment, for trying the script without a GPU: ORRERY_GPU_TEST, ORRERY_GPU_BENCH, the programs; ORRERY_GPU_TINY=1, smallest shapes;
# ORRERY_GPU_FILTER, a filter of the tests; ORRERY_GPU_SECTIONS, of bench_gpu; ORRERY_GPU_SECONDS, a part's limit.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/results}
mkdir -p "$out" || exit 2
[ -d "$here/samples" ] && export ORRERY_SOURCE_ROOT="$here"   # the files that tests read
tests=${ORRERY_GPU_TEST:-$here/gpu_test}
bench=${ORRERY_GPU_BENCH:-$here/bench_gpu}
filter=${ORRERY_GPU_FILTER:-*}
limit=${ORRERY_GPU_SECONDS:-530}
tiny=${ORRERY_GPU_TINY:+tiny}

# part NAME COMMAND...: once. 124: it took too long.
part() {
  name=$1
  shift
  [ -f "$out/$name.status" ] && return
  began=$(date +%s)
  timeout "$limit" "$@" >"$out/$name.log" 2>&1
  status=$?
  echo "$status $(($(date +%s) - began))" >"$out/$name.status"
  echo "$name: $([ $status -eq 0 ] && echo passed || echo "failed, $status")"
}

for shard in 0 1 2 3; do
  part "tests-$shard" env GTEST_TOTAL_SHARDS=4 GTEST_SHARD_INDEX=$shard "$tests" "--gtest_filter=$filter" --gtest_brief=1
done
# The sanitizers slow kernels down by a hundred times: the smallest tests that launch every kind of kernel.
kinds='GpuKv.*:GpuRows*:GpuLowRank.ByHead*:GpuTopKeys.SeveralJobs:GpuFusions.*:GpuAttendDecode.LongerSplits:GpuShortlist.Tails'
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck initcheck synccheck; do
    part "$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 "$tests" --gtest_brief=1 \
      --gtest_filter="$kinds"
  done
else
  echo "compute-sanitizer is not here: its four tools are left out"
fi
for section in ${ORRERY_GPU_SECTIONS:-matvec decode sampling products prefill attention policy}; do
  part "bench-$section" "$bench" ${tiny:+"$tiny"} $section
done

{
  echo
  echo "| part | result | seconds |"
  echo "| --- | --- | --- |"
  for file in "$out"/*.status; do
    read -r status seconds <"$file"
    name=$(basename "$file" .status)
    case $status in 0) said=passed ;; 124) said="took too long" ;; *) said="failed, $status" ;; esac
    echo "| $name | $said | $seconds |"
  done
  # Tables that were measured, then those that had been predicted.
  for file in "$out"/bench-*.log; do
    [ -f "$file" ] && sed -n '/^|/p; /^[A-Z].*:/p' "$file"
  done
  if [ -f "$here/gpu-predictions.md" ]; then
    echo
    echo "Predicted (tests/bench/results/gpu-predictions.md):"
    sed -n '/^| model/,/^$/p' "$here/gpu-predictions.md"
  fi
} | tee "$out/table.md"
! grep -L '^0 ' "$out"/*.status | grep -q .
