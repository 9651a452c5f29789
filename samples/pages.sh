#!/bin/sh
# pages.sh ORRERY FOLDER: the tool's man pages (FOLDER/man1, compressed) and completions, as the tool prints them.
set -eu
orrery=$1 folder=$2
mkdir -p "$folder/man1"
rm -f "$folder"/man1/*
"$orrery" man >"$folder/man1/orrery.1"
for command in $("$orrery" help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
  "$orrery" man "$command" >"$folder/man1/orrery-$command.1"
done
gzip -9nf "$folder"/man1/*.1
for shell in bash zsh fish; do "$orrery" completions $shell >"$folder/orrery.$shell"; done
