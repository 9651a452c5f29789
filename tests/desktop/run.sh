#!/bin/sh
# run.sh BUILD [CASE...]: the desktop application in a real window, under Xvfb and on a message bus of its own; all cases, or those
# whose names hold one of the words. The last line is `N passed, N failed, N skipped`. Without a package that it takes, or without the
# application, everything is skipped, and the line before the last says why.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd) || exit 2
shift
# Debian's Python, which has its GObject bindings, whichever other Python comes first.
python=/usr/bin/python3
[ -x $python ] || python=python3
missing=''
for program in Xvfb dbus-run-session xdotool import; do
  command -v $program >/dev/null || missing="$missing $program"
done
$python -c 'import gi; gi.require_version("Atspi", "2.0"); from gi.repository import Atspi' 2>/dev/null || missing="$missing gir1.2-atspi-2.0"
[ -x "$build/samples/desktop/orrery-desktop" ] || missing="$missing orrery-desktop(libgtk-4-dev)"
if [ -n "$missing" ]; then
  echo "skipped:$missing not found"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi
run=$(mktemp -d)
export XDG_RUNTIME_DIR="$run" XDG_CONFIG_HOME="$run/config" LC_ALL=C.UTF-8 GDK_BACKEND=x11 GSK_RENDERER=cairo NO_AT_BRIDGE=0
unset WAYLAND_DISPLAY DISPLAY AT_SPI_BUS_ADDRESS GTK_THEME
xvfb=
trap '[ -z "$xvfb" ] || kill $xvfb; rm -rf "$run"' EXIT
for _ in 1 2 3; do  # a display whose last owner is just leaving does not answer
  : >"$run/display"
  Xvfb -displayfd 3 -screen 0 1100x750x24 -nolisten tcp -noreset >"$run/xvfb.log" 2>&1 3>"$run/display" &
  xvfb=$!
  for _ in $(seq 100); do
    grep -q . "$run/display" && break
    sleep 0.1
  done
  DISPLAY=:$(cat "$run/display")
  export DISPLAY
  sleep 0.5
  xdotool getdisplaygeometry >/dev/null 2>&1 && break
  kill $xvfb
done
dbus-run-session -- $python -W ignore "$here/desktop_test.py" "$build" "$@" 2>"$run/errors"
status=$?
[ $status -eq 0 ] || grep -vE 'dbus-daemon|SpiRegistry' "$run/errors" | tail -30 >&2
exit $status
