#!/bin/sh
# emulated_lease.sh FOLDER GPU_TEST BENCH_GPU BENCH_KV MAKE_MODEL: lease.sh with the emulated programs, on the smallest shapes: a first call, in which each
# part that has a program passes; a call that runs out of time; and one whose first tests fail.
set -u
script=$(cd "$(dirname "$0")" && pwd)/lease.sh
rm -rf "$1" && mkdir -p "$1/programs" || exit 2
folder=$1
ln -s "$2" "$folder/programs/gpu_test"
ln -s "$3" "$folder/programs/bench_gpu"
ln -s "$4" "$folder/programs/bench_kv"
ln -s "$5" "$folder/programs/make_model"
export ORRERY_GPU_TINY=1 ORRERY_GPU_TESTS='GpuRows*' ORRERY_GPU_PROGRAMS="$folder/programs" ORRERY_GPU_MODEL="$folder/model.gguf"
fail() {
  echo "$1"
  cat "$folder/said"
  exit 1
}
run() {
  rm -rf "$folder/results"
  "$script" "$1" "$folder/results" >"$folder/said" 2>&1
}
ORRERY_GPU_PARTS="smoke tests limits decode policies-32k prompts-own" run first || fail "the first call failed"
for part in smoke tests limits decode policies-32k prompts-own; do
  grep -q "^| $part | passed" "$folder/results/table.md" || fail "$part did not pass"
done
grep -q "^| copying" "$folder/results/table.md" || fail "the table of limits is not there"
tar -tzf "$folder/results/logs.tar.gz" | grep -q "shard-7.txt" || fail "the logs of the tests are not there"
[ "$(find "$folder/results" -type f | wc -l)" -le 8 ] || fail "more than eight files"
ORRERY_GPU_SECONDS_ALL=1 ORRERY_GPU_PARTS="smoke" run first && fail "a call without time passed"
grep -q "no time was left" "$folder/results/table.md" || fail "a call without time did not say so"
ORRERY_GPU_PROGRAMS=$folder run first && fail "a call without programs passed"
grep -q "nothing else was run" "$folder/results/table.md" || fail "a call whose first tests fail went on"
ORRERY_GPU_PARTS=none run second || fail "the second call failed"
run third && fail "a third call passed"
echo "passed"
