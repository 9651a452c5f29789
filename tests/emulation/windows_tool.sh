#!/bin/sh
# windows_tool.sh BUILD BUILD_WINDOWS JOBS [CTEST_OPTIONS...]: lets the tests of BUILD that start the tool start BUILD_WINDOWS/orrery.exe under
# Wine. Cases that Wine or Windows cannot pass are left out by name.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$1 windows=$(cd "$2" && pwd) jobs=$3
shift 3
left_out=''
skip() { for name; do left_out="$left_out${left_out:+:}$name"; done; }

export ORRERY_WINE="$windows/wine" ORRERY_TOOL="$windows/under-wine/orrery" ORRERY_CHAT_SAMPLE="$windows/under-wine/chat-sample"
export GTEST_FILTER="-$left_out"
"$here/wine.sh" "$windows/orrery.exe" --version   # makes Wine's folder, before tests that have a limit start together
exec "$here/../run.sh" "$build" "$jobs" "$@"
