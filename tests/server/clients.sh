#!/bin/sh
# clients.sh BUILD: published clients against the server. It installs PyPI's `openai` and `llm` in BUILD/clients, a virtual environment, unless
# they are there, and runs clients_test.py in it. The last line is `N passed, N failed`.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
if ! [ -x "$build/clients/bin/llm" ]; then
  python3 -m venv "$build/clients"
  "$build/clients/bin/pip" install -q openai llm
fi
"$build/clients/bin/pip" list 2>/dev/null | grep -E '^(openai|llm) '
ORRERY_SERVER="$build/samples/server/orrery-server" exec "$build/clients/bin/python" "$here/clients_test.py"
