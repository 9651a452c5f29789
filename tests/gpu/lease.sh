#!/bin/sh
# lease.sh [first|second] [FOLDER]: minutes with a lent GPU, on a machine that has its driver and nothing else. `make gpu-lease` packs this script
# with the programs that it runs. It runs in the root of a copy of the checkout, whose models and goldens the tests read. FOLDER (results, if none is named) gets three files, complete after each part, so a script that is stopped
# loses one part: table.md, ready for tests/bench/results; env.txt; logs.tar.gz.
#
# first   at most 490 s: what the machine is; a test of each file of kernels (if one fails, nothing more runs); all tests; what the card
#         gives and what the kernels take of it, beside predictions; policies; prompts; a model of 8B through the C ABI; racecheck, memcheck
# second  at most 300 s: initcheck, synccheck, and hardware counters (ncu) of the kernels that ORRERY_GPU_KERNELS names (a regular expression)
#
# Environment: ORRERY_GPU_SECONDS_ALL, the limit of all parts together; ORRERY_GPU_PARTS, names of the parts that run (all). To try the script
# without a GPU: ORRERY_GPU_TINY=1, smallest shapes; ORRERY_GPU_TESTS, a filter of the tests; ORRERY_GPU_PROGRAMS, the programs' folder.
set -u
here=$(cd "$(dirname "$0")" && pwd)
self=$here/$(basename "$0")
if [ -f "$here/join.sh" ]; then   # the programs travel without the kernels that all of them hold
  sh "$here/join.sh" && rm "$here/join.sh" || exit 2
fi
[ -d samples/models ] && export ORRERY_SOURCE_ROOT="$PWD"   # the files that tests read
programs=${ORRERY_GPU_PROGRAMS:-$here}
tests=$programs/gpu_test
bench=$programs/bench_gpu
tiny=${ORRERY_GPU_TINY:+tiny}
model=${ORRERY_GPU_MODEL:-/tmp/orrery-lease-8b.gguf}
predictions=$here/gpu-predictions.tsv

# find_tool NAME: on the path, or where toolkits lie.
find_tool() {
  command -v "$1" || ls -d /usr/local/cuda*/bin/"$1" /usr/local/cuda*/compute-sanitizer/"$1" /opt/nvidia/nsight-compute/*/"$1" 2>/dev/null | head -1
}
sanitizer=$(find_tool compute-sanitizer)
profiler=$(find_tool ncu)

# ---- parts: `lease.sh do PART ARGUMENTS...`, so that a limit ends a part with all of its programs

# One small test of each file of kernels, of transfers and of graphs.
smoke() {
  few='GpuAttendDecode.LongerSplits:GpuAttendPrefill.KeysFromHostMemory:GpuTopKeys.SeveralJobs:GpuTopKeys.DigestsAndTheBestOfThem'
  few=$few:'GpuFormats.EmbeddingsAreTheFilesValues:GpuFetch.PagesAndTokens:GpuKeyCodes.TokenByToken:GpuKv.AppendsAsTheCpuDoes'
  few=$few:'GpuLowRank.ByHeadAsThePlainPath:Types/GpuMatmul.EveryWeightIsWhereItShouldBe/Q4_K'
  few=$few:'Types/GpuMatmul.TilesOfEverySizeGiveTheSameBits/Q8_0:GpuRows.*:GpuShortlist.Tails:GpuTransfer.*:GpuModel.TokensShareOneGraph'
  "$tests" --gtest_brief=1 "--gtest_filter=${ORRERY_GPU_TESTS:-$few}"
}
# all_tests SHARDS FOLDER: side by side, logs in FOLDER; their last lines, and what failed.
all_tests() {
  shards=$1 folder=$2 bad=0
  for shard in $(seq 0 $((shards - 1))); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard "$tests" "--gtest_filter=${ORRERY_GPU_TESTS:-*}" --gtest_brief=1 \
      >"$folder/shard-$shard.txt" 2>&1 &
    eval "shard_$shard=$!"
  done
  for shard in $(seq 0 $((shards - 1))); do
    eval "wait \$shard_$shard" || bad=1
    grep -E '^Device:|^\[  (PASSED|FAILED)  \]' "$folder/shard-$shard.txt" | sort -u || echo "Shard $shard: it ended early"
  done
  return $bad
}
# sanitize FOLDER TOOL...: side by side. Kernels with cp.async and barriers on their smallest shapes: a sanitizer slows them down a hundred times.
sanitize() {
  folder=$1 bad=0
  shift
  few='GpuAttendDecode.LongerSplits:GpuAttendPrefill.KeysFromHostMemory:GpuTopKeys.SeveralJobs:GpuFormats.EmbeddingsAreTheFilesValues'
  few=$few:'GpuFetch.PagesAndTokens:GpuKeyCodes.TokenByToken:GpuKv.AppendsAsTheCpuDoes:GpuLowRank.ByHeadAsThePlainPath'
  few=$few:'Types/GpuMatmul.EveryWeightIsWhereItShouldBe/Q4_K:Types/GpuMatmul.ExtremeCodesDoNotOverflow/Q8_0:GpuRows.GateAndSum:GpuShortlist.Tails'
  "$sanitizer" --version || return 1
  for tool in "$@"; do
    "$sanitizer" --tool "$tool" --error-exitcode 1 --print-limit 20 "$tests" --gtest_brief=1 "--gtest_filter=${ORRERY_GPU_TESTS:-$few}" \
      >"$folder/$tool.txt" 2>&1 &
    eval "tool_$tool=$!"
  done
  for tool in "$@"; do
    eval "wait \$tool_$tool" || bad=1
    sed -n "s/^=* *\([A-Z]* SUMMARY.*\)/$tool: \1/p; s/^\(\[  PASSED.*\)/$tool: \1/p; s/^\(\[  FAILED.*\)/$tool: \1/p" "$folder/$tool.txt"
  done
  return $bad
}
# counters KERNELS: hardware counters of the launches of a decode step of 8B, one by one: two layers, behind the first steps.
counters() {
  "$profiler" --clock-control none -k "regex:$1" --launch-skip ${ORRERY_GPU_SKIP:-700} -c 48 --csv --page raw --print-units base \
    --metrics gpu__time_duration.sum,dram__bytes_read.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,smsp__issue_active.avg.pct_of_peak_sustained_active,sm__warps_active.avg.pct_of_peak_sustained_active,launch__grid_size,launch__registers_per_thread \
    "$bench" ${tiny:+tiny} seconds=30 decode | sed -n '/^"ID"/,$p'
}
# cuBLAS is found where PyTorch or a toolkit keeps it.
with_cublas() {
  export LD_LIBRARY_PATH="$1${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  shift
  "$@"
}
# policies CONTEXT SECONDS: steps of 8B under policies; the host's milliseconds apart.
policies() {
  tuning="contexts=$1 steps=24 repeat=3"
  [ -z "$tiny" ] || tuning="contexts=300 steps=2 repeat=1 budget_gib=0.1 reservoir_gib=0.1"
  "$programs/bench_kv" "$model" backend=cuda seconds="$2" $tuning budget=0.2 \
    "policies=full,auto,auto:by=codes,quest,freekv,heterocache,shadowkv,synckv:budget=0.3,streaming"
}
# answers SECONDS: 8B through the C ABI: loading, the first token, decoding; the same answer twice.
answers() {
  "$programs/bench_answer" "$model" backend=cuda seconds="$1" prompts=512,32768 tokens=64 policies=full,auto budget=0.2
}
if [ "${1:-}" = "do" ]; then
  shift
  "$@"
  exit $?
fi

# ---- the script

which=${1:-first}
out=${2:-$here/results}
case $which in first) all=490 ;; second) all=300 ;; *) echo "usage: lease.sh [first|second] [FOLDER]" >&2 && exit 2 ;; esac
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
logs=$(mktemp -d) || exit 2
trap 'rm -rf "$logs"' EXIT
end=$(($(date +%s) + ${ORRERY_GPU_SECONDS_ALL:-$all}))
failed=0
: >"$logs/parts"
: >"$logs/notes"

# table: what is there so far, as Markdown; and the logs.
table() {
  {
    echo "| part | result | seconds |"
    echo "| --- | --- | --- |"
    cat "$logs/parts" "$logs/notes"
    for log in $(ls -tr "$logs"/*.log); do
      printf '\n## %s\n\n' "$(basename "$log" .log)"
      case $log in */policies* | */answers* | */counters*) sed 's/^/    /' "$log" && continue ;; esac   # tables of their own
      awk '/^\|/ { if (!t) print ""; t = 1; print; next } { t = 0 } /^[A-Z].*[:;]/ || /^\[  (FAILED|PASSED)  \]/ || /SUMMARY/ { print }' "$log"
    done
  } >"$out/table.md"
  tar -C "$logs" -czf "$out/logs.tar.gz" .
}
note() { printf '\n%s\n' "$1" | tee -a "$logs/notes"; }
# part NAME SECONDS COMMAND...: its output in NAME.log, no longer than SECONDS and what is left of all.
part() {
  name=$1 limit=$2
  shift 2
  case " ${ORRERY_GPU_PARTS:-$name} " in *" $name "*) ;; *) return 0 ;; esac
  left=$((end - $(date +%s)))
  [ "$limit" -le "$left" ] || limit=$left
  if [ "$limit" -lt 3 ]; then
    echo "| $name | no time was left | 0 |" | tee -a "$logs/parts"
    failed=1
    return 1
  fi
  began=$(date +%s)
  timeout -k 2 "$limit" "$@" >"$logs/$name.log" 2>&1
  status=$?
  case $status in 0) said=passed ;; 124 | 137) said="stopped after $limit s" ;; *) said="failed, $status" ;; esac
  echo "| $name | $said | $(($(date +%s) - began)) |" | tee -a "$logs/parts"
  if [ $status -ne 0 ]; then
    failed=1
    tail -5 "$logs/$name.log" | cut -c1-300
  fi
  table
  return $status
}

cublas=$(timeout 20 find /usr /opt -name 'libcublas.so.1[23]' 2>/dev/null | sort | tail -1)
cublas=${cublas%/*}
{
  uname -a
  nproc
  free -g
  ldd "$tests"
  echo "compute-sanitizer: ${sanitizer:-none}"
  echo "ncu: ${profiler:-none}"
  echo "cuBLAS: ${cublas:-none}"
  nvidia-smi
  nvidia-smi -q -d CLOCK,POWER,PERFORMANCE
  nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,clocks.sm,clocks.max.sm,clocks.mem \
    --format=csv
} >"$out/env.txt" 2>&1
[ -n "$sanitizer" ] || note "There is no compute-sanitizer here: its parts are left out."
[ -n "$cublas" ] || note "There is no cuBLAS here: prompts run through our own kernels alone."
known=
[ -f "$predictions" ] && known=predictions=$predictions

if [ "$which" = first ]; then
  if ! part smoke 60 "$self" do smoke; then
    note "The first tests failed: nothing else was run."
    table
    exit 1
  fi
  # The model is written while the tests run: neither needs all processors.
  if [ -n "$tiny" ]; then type=Q8_0 shape=tiny; else type=Q4_K_M shape=llama-3.1-8b; fi
  "$programs/make_model" $type "$model" $shape >"$logs/make_model.txt" 2>&1 &
  making=$!
  part tests 120 "$self" do all_tests 8 "$logs"
  part limits 30 "$bench" ${tiny:+tiny} seconds=25 limits gather
  part decode 60 "$bench" ${tiny:+tiny} ${known:+"$known"} seconds=55 matvec decode attention sampling
  wait $making || note "The model of 8B could not be written: what runs on it is left out."
  part policies-32k 60 "$self" do policies 32768 55
  part prompts-own 40 "$bench" ${tiny:+tiny} ${known:+"$known"} seconds=35 prefill
  [ -n "$cublas" ] && part prompts-cublas 40 "$self" do with_cublas "$cublas" "$bench" ${tiny:+tiny} ${known:+"$known"} seconds=35 products prefill
  part answers 60 "$self" do answers 55
  part policies-128k 70 "$self" do policies 131072 60
  [ -n "$sanitizer" ] && part sanitizers 100 "$self" do sanitize "$logs" racecheck memcheck
  rm -f "$model"
else
  [ -n "$sanitizer" ] && part sanitizers 150 "$self" do sanitize "$logs" initcheck synccheck
  if [ -n "$profiler" ] && [ -n "${ORRERY_GPU_KERNELS:-}" ]; then
    part counters 120 "$self" do counters "$ORRERY_GPU_KERNELS"
  fi
fi
table
echo
cat "$out/table.md"
exit $failed
