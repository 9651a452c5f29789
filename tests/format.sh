#!/bin/sh
# Puts the C, C++ and CUDA sources into the format of .clang-format: format.sh. With `check`: names the files that are not in it, changes
# nothing, and fails if there is one. Three files stay as they are: the header, whose comments are tables set by hand, and what
# bindings/generate.py writes.
set -eu
cd "$(dirname "$0")/.."
format=$(command -v clang-format-14) || { echo "format.sh: clang-format-14 is missing; .ci/packages format" >&2; exit 2; }
files=$(git ls-files '*.c' '*.h' '*.cpp' '*.cu' '*.cuh' |
  grep -v -x -e include/orrery.h -e bindings/node/functions.h -e bindings/c/layouts.h)
if [ "${1:-}" = check ]; then
  # xargs fails where a file is in another format.
  echo "$files" | xargs -P "$(nproc)" -n 30 "$format" --dry-run -Werror
  echo "$(echo "$files" | wc -l) files in one format"
else
  echo "$files" | xargs -P "$(nproc)" -n 30 "$format" -i
fi
