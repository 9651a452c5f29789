#!/bin/sh
# windows_tool.sh BUILD BUILD_WINDOWS JOBS [CTEST_OPTIONS...]: lets the tests of BUILD that start the tool start BUILD_WINDOWS/orrery.exe under
# Wine. README.md says why the cases below are left out.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$1 windows=$(cd "$2" && pwd) jobs=$3
shift 3
left_out=''
skip() { for name; do left_out="$left_out${left_out:+:}$name"; done; }
# They name /dev/stdout, /dev/null or /dev/full.
skip Bench.TraceSaysWhereAStepGoes ToolProfile.ImportsDuoAttentionsGates
# Wine gives a closed standard input a handle that cannot be read.
skip Output.ThatCannotBeWrittenIsAFailure

export ORRERY_WINE="$windows/wine" ORRERY_TOOL="$windows/under-wine/orrery" ORRERY_CHAT_SAMPLE="$windows/under-wine/chat-sample"
export GTEST_FILTER="-$left_out"
# Wine's servers start with the first program and hold its standard output, which a test would wait for. One program that waits for its input
# keeps them running as long as this script.
input=$windows/input.$$
mkfifo "$input"
"$here/wine.sh" "$windows/orrery.exe" tokenize "$here/../../samples/models/demo-q8_0.gguf" - <"$input" >/dev/null 2>&1 &
exec 8>"$input"
rm "$input"
"$here/wine.sh" "$windows/orrery.exe" --version >/dev/null </dev/null   # it runs now
exec "$here/../run.sh" "$build" "$jobs" "$@"
