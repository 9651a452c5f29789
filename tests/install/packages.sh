#!/bin/sh
# packages.sh FOLDER: installs each package of FOLDER into an empty root, and lets the bundled model answer there. An empty root holds the C
# library and nothing else of this machine. The last line counts.
set -u
folder=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
question='Who are you?'
answer='I am the Orrery demo model. I answer questions about the text that you give me.'
passed=0 failed=0 skipped=0
ok() { echo "passed   $1"; passed=$((passed + 1)); }
bad() { echo "failed   $1: $2"; failed=$((failed + 1)); }
skip() { echo "skipped  $1: $2"; skipped=$((skipped + 1)); }
expect() {  # expect WHAT SAID
  if [ "$2" = "$answer" ]; then ok "$1"; else bad "$1" "said '$2'"; fi
}

# copy_libraries ROOT PROGRAM: what the dynamic loader takes for PROGRAM, except ours, at the same places in ROOT.
copy_libraries() {
  ldd "$2" 2>/dev/null | grep -o '/[^ ]*' | grep -v liborrery | while read -r library; do
    mkdir -p "$1$(dirname "$library")"
    cp -L "$library" "$1$library"
  done
}

debian() {
  for name in liborrery0 liborrery-dev orrery orrery-desktop; do
    [ "$(ls "$folder/${name}"_*.deb 2>/dev/null | wc -l)" = 1 ] || { bad debian "no package $name in $folder"; return; }
  done
  [ "$(id -u)" = 0 ] || { skip debian "only root may change its root"; return; }
  root=$work/debian
  mkdir -p "$root/etc" "$root/tmp"
  for package in "$folder"/*.deb; do dpkg-deb -x "$package" "$root" || { bad debian "$package cannot be unpacked"; return; }; done
  copy_libraries "$root" "$root/usr/bin/orrery"
  copy_libraries "$root" "$(find "$root/usr/lib" -name liborrery.so.0)"
  ldconfig -r "$root" 2>/dev/null
  expect "debian: the tool answers" "$(chroot "$root" /usr/bin/orrery run /usr/share/orrery/demo-q8_0.gguf "$question" 2>&1)"
  if chroot "$root" /usr/bin/orrery demo >"$work/demo.log" 2>&1; then ok "debian: orrery demo finds the bundled model"; else bad "debian: orrery demo" "$(tail -3 "$work/demo.log")"; fi
  missing=''
  for page in orrery orrery-chat orrery-plan; do [ -s "$root/usr/share/man/man1/$page.1.gz" ] || missing="$missing $page.1"; done
  [ -s "$root/usr/share/bash-completion/completions/orrery" ] || missing="$missing bash-completion"
  [ -s "$root/usr/include/orrery.h" ] && [ -s "$root/usr/include/orrery_lab.h" ] && [ -n "$(find "$root/usr/lib" -name liborrery.so)" ] || missing="$missing development"
  if [ -z "$missing" ]; then ok "debian: man pages, completions, header"; else bad "debian: contents" "missing$missing"; fi
  missing=''
  for package in liborrery0 liborrery-dev orrery orrery-desktop; do
    for of in "Copyright (c) 2026 The Orrery authors" "Yann Collet" "Daan Leijen"; do grep -qF "$of" "$root/usr/share/doc/$package/copyright" || missing="$missing $package:$of"; done
  done
  if [ -z "$missing" ]; then ok "debian: every package has the licences"; else bad "debian: licences" "missing$missing"; fi
  machine=$(dpkg-deb -c "$folder"/liborrery0_*.deb | grep -c '/usr/lib/[^/]*-linux-gnu[^/]*/liborrery.so.0')
  if [ "$machine" -ge 1 ]; then ok "debian: the library lies in its architecture's folder"; else bad "debian: folders" "the library is not in /usr/lib/ARCHITECTURE"; fi
  if dpkg-deb -f "$folder"/orrery_*.deb Maintainer | grep -q '^.* <.*@.*>$'; then ok "debian: a maintainer"; else bad "debian: maintainer" "none"; fi
  entry=$root/usr/share/applications/org.orrery.Desktop.desktop
  icon=$(sed -n 's/^Icon=//p' "$entry" 2>/dev/null)
  if [ -x "$root/usr/bin/$(sed -n 's/^Exec=\([^ ]*\).*/\1/p' "$entry")" ] && [ -s "$root/usr/share/icons/hicolor/scalable/apps/$icon.svg" ]; then
    ok "debian: the menu entry's program and icon are there"
  else
    bad "debian: menu entry" "its program or icon is missing"
  fi
  if bash -n "$root/usr/share/bash-completion/completions/orrery"; then ok "debian: bash reads the completions"; else bad "debian: completions" "bash does not read them"; fi
  if grep -rqF -e "$(cd "$here/../.." && pwd)" "$root/usr"; then bad "debian: places" "a file names the folder of the sources"; else ok "debian: no file names the place that it was built in"; fi
}

# has_licences FILES NAME...: ours, and those of all that is compiled in, by name.
has_licences() {
  files=$1
  shift
  for licence in LICENSE LICENSE.xxhash "$@"; do
    printf '%s\n' "$files" | grep -qE "(^|[/ ])$licence( |$)" || { echo "$licence is missing"; return 1; }
  done
}

wheel() {
  wheel=$(ls "$folder"/*linux*.whl 2>/dev/null | head -1)
  [ -n "$wheel" ] || { bad wheel "no wheel in $folder"; return; }
  python3 -m venv "$work/venv" >/dev/null 2>&1 || { skip wheel "this Python makes no virtual environments"; return; }
  "$work/venv/bin/pip" install --no-index --quiet "$wheel" || { bad wheel "pip does not install it"; return; }
  if said=$(has_licences "$(python3 -m zipfile -l "$wheel")" LICENSE.mimalloc); then ok "wheel: licences"; else bad "wheel: licences" "$said"; fi
  case $wheel in   # and by its symbols, not by its name alone
    *manylinux_2_28_* | *manylinux_2_27_* | *manylinux_2_26_* | *manylinux_2_17_*) ok "wheel: it needs the C library of 2018" ;;
    *) bad "wheel: the C library" "$(basename "$wheel") needs a newer one than 2.28" ;;
  esac
  said=$(cd "$work" && "$work/venv/bin/python" -c "
import sys, orrery
with orrery.Runtime() as runtime, runtime.open(sys.argv[1]) as model, model.session() as session:
    session.add_message('user', sys.argv[2])
    print(''.join(session.generate(temperature=0).text()))
" "$here/../../samples/models/demo-q8_0.gguf" "$question" 2>&1)
  expect "wheel: Python answers" "$said"
}

windows_wheel() {
  wheel=$(ls "$folder"/*-win_amd64.whl 2>/dev/null | head -1)
  [ -n "$wheel" ] || { bad "windows wheel" "none in $folder"; return; }
  mkdir "$work/windows-wheel"
  python3 -m zipfile -e "$wheel" "$work/windows-wheel" || { bad "windows wheel" "it cannot be unpacked"; return; }
  if said=$(has_licences "$(find "$work/windows-wheel" -type f)"); then ok "windows wheel: licences"; else bad "windows wheel: licences" "$said"; fi
  # No Python for Windows is here. The sample of the zip asks the wheel's library, which lies next to it and nowhere else.
  sample=$(find "$work/windows" -name chat-sample.exe)
  cp "$sample" "$work/windows-wheel/orrery/"
  said=$(echo "$question" | wine "$work/windows-wheel/orrery/chat-sample.exe" "$model" 2>/dev/null | tr -d '\r' | sed '/^$/d')
  expect "windows wheel: its library answers" "$said"
  if grep -q '^Tag: py3-none-win_amd64' "$work"/windows-wheel/orrery-*.dist-info/WHEEL; then ok "windows wheel: its tag"; else bad "windows wheel: its tag" "is another"; fi
}

windows() {
  zip=$(ls "$folder"/*.zip 2>/dev/null | head -1)
  [ -n "$zip" ] || { bad windows "no zip in $folder"; return; }
  mkdir "$work/windows"
  python3 -m zipfile -e "$zip" "$work/windows" || { bad windows "it cannot be unpacked"; return; }
  # The library is found beside the programs, or not at all.
  empty=$work/elsewhere
  mkdir "$empty"
  wine() { (cd "$empty" && ORRERY_WINE_PATH= "$here/../emulation/wine.sh" "$@"); }
  model=$(find "$work/windows" -name demo-q8_0.gguf)
  tool=$(find "$work/windows" -name orrery.exe)
  [ -n "$tool" ] || { bad windows "no orrery.exe inside"; return; }
  if said=$(has_licences "$(find "$work/windows" -type f)" LICENSE.nlohmann-json); then ok "windows: licences"; else bad "windows: licences" "$said"; fi
  said=$(wine "$tool" --version 2>&1 | head -1)
  case $said in "orrery "*" (ABI 2)") ok "windows: orrery --version" ;; *) bad "windows: orrery --version" "said '$said'" ;; esac
  expect "windows: the tool answers from an empty folder" "$(wine "$tool" run "$model" "$question" 2>&1)"
  if wine "$tool" demo >"$work/demo.log" 2>&1; then ok "windows: orrery demo finds the bundled model"; else bad "windows: orrery demo" "$(tail -3 "$work/demo.log")"; fi
  said=$(echo "$question" | wine "$(find "$work/windows" -name chat-sample.exe)" "$model" 2>/dev/null | tr -d '\r' | sed '/^$/d')
  expect "windows: the sample answers from the folder that it was unpacked to" "$said"
}

sources() {
  tarball=$(ls "$folder"/orrery-*.tar.gz 2>/dev/null | head -1)
  [ -n "$tarball" ] || { bad sources "no tarball in $folder"; return; }
  mkdir "$work/sources"
  tar -xzf "$tarball" -C "$work/sources"
  cd "$work/sources"/orrery-* || { bad sources "no folder orrery-VERSION inside"; return; }
  version=$(basename "$PWD")
  if grep -q "^# Orrery ${version#orrery-}, 20" RELEASE-NOTES.md && grep -q '^ABI ' RELEASE-NOTES.md; then ok "sources: release notes"; else bad "sources: release notes" "none, or of another version"; fi
  if [ -s LICENSE ] && [ -s capi/licences/LICENSE.xxhash ]; then ok "sources: licences"; else bad "sources: licences" "missing"; fi
  if cmake -S . -B build -DORRERY_TESTS=OFF >"$work/configure.log" 2>&1; then ok "sources: CMake configures them"; else bad sources "$(tail -3 "$work/configure.log")"; fi
}

debian
wheel
windows
windows_wheel
sources
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ] && [ $passed -gt 0 ]
