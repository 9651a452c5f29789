#!/bin/sh
# check.sh BUILD JOBS [ROOM...]: proves an edit in one room within a minute or so: builds the room's tests and runs their quick cases,
# and the house's rules. Without a room: the rooms of what differs from the last commit. The last line counts, as run.sh's does.
# A room is a folder of runtime/ (text, kv, ...), or capi, include, cuda, samples, bindings. The whole proof is `make test`.
set -u
build=$1 jobs=$2
shift 2

rooms=$*
if [ -z "$rooms" ]; then
  rooms=$({ git diff --name-only HEAD; git ls-files --others --exclude-standard; } 2>/dev/null |
    sed -n -e 's|^runtime/\([a-z]*\)/.*|\1|p' -e 's|^tests/unit/\([a-z]*\)/.*|\1|p' -e 's|^\(capi\|include\|cuda\|samples\|bindings\)/.*|\1|p' -e 's|^tests/abi/.*|capi|p' \
      -e 's|^tests/gpu/.*|cuda|p' -e 's|^tests/tool/.*|samples|p' | sort -u | tr '\n' ' ')
fi

# plan ROOM: sets `target`, the program that proves the room, and `cases`, a filter that leaves out what takes longer than a few seconds.
plan() {
  target=unit_$1 cases='*'
  case $1 in
    base | os | gguf | kv | model) ;;
    text) cases='*:-*IsLinear*:*AMegabyteOf*:HostileTemplate.TooMuchMemory' ;;
    policy) cases='*:-PolicyInvariants.HoldOverBudgetsAndShapes' ;;
    cpu) cases='*CpuMatmul*:*CpuLowRank*:*CpuMoveKv*:*CpuTopKeys*:CpuBackend*:-*/avx512*' ;;
    engine) cases='EngineRuntime*:EnginePlan*:EngineGeneration*:EnginePrompt*:EngineSampler*:EngineModel*:EngineCancel*' ;;
    backend) target=unit_engine cases='Turn*:Turns*:EngineRuntime*' ;;
    capi | include) target=abi_contract ;;
    cuda) target=emulated_cuda cases='*Matmul*:*TopKeys*:*Digest*' ;;
    samples) target=tool_command_line_test ;;
    *) echo "no room $1: a folder of runtime/, or capi, include, cuda, samples, bindings" >&2; exit 2 ;;
  esac
}

passed=0 failed=0
prove() {  # prove PROGRAM CASES: runs the cases of a GoogleTest program
  program=$(find "$build/tests" -type f -name "$1" -perm -u+x | head -1)
  log=$(GTEST_COLOR=no "$program" --gtest_brief=1 --gtest_filter="$2" 2>&1) || echo "$log" | grep -v '^Running main'
  set -- $(echo "$log" | sed -n 's/^\[  PASSED  \] \([0-9]*\) tests*\..*/\1/p') 0
  passed=$((passed + $1))
  n=$(echo "$log" | sed -n 's/^ *\([0-9]*\) FAILED TEST.*/\1/p')
  case $log in *'[  PASSED  ]'*) ;; *) n=${n:-1} ;; esac
  failed=$((failed + ${n:-0}))
}

targets=house_rules
for room in $rooms; do
  if [ "$room" != bindings ]; then plan "$room"; targets="$targets $target"; fi
done
cmake --build "$build" -j"$jobs" --target $targets >"$build/check.log" 2>&1 || { grep -E 'error|warning' "$build/check.log" || tail -20 "$build/check.log"; echo "0 passed, 1 failed"; exit 1; }
prove house_rules '*'
for room in $rooms; do
  echo "== $room"
  if [ "$room" = bindings ]; then
    cmake --build "$build" -j"$jobs" --target orrery_shared >/dev/null 2>&1
    if bindings/run_tests.py "$build" generator c python; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  else
    plan "$room"
    prove "$target" "$cases"
  fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
