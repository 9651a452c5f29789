#!/bin/sh
# install.sh SOURCE BUILD LIBDIR CMAKE CC CXX: what an application's author finds after `make install`.
#
# Installs into an empty prefix and moves it, so that nothing can lean on the build or on where it was installed; then
# builds consumer/ in C and C++, with pkg-config and with CMake, shared and static, in an empty environment. Each program opens
# the installed demo model and must give the known answer.
set -eu
source=$1 build=$2 libdir=$3 cmake=$4 cc=$5 cxx=$6
command -v pkg-config >/dev/null || { echo "no pkg-config: skipped"; exit 77; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

"$cmake" --install "$build" --prefix "$work/first" >"$work/install.log" || { cat "$work/install.log"; fail "install"; }
mv "$work/first" "$work/prefix"
prefix=$work/prefix
cp -R "$source/tests/install/consumer" "$work/consumer"
cd "$work"

# What must be there.
version=$(sed -n 's/^Version: //p' "$prefix/$libdir/pkgconfig/orrery.pc")
major=${version%%.*}
for file in include/orrery.h include/orrery_lab.h "$libdir/liborrery.so" "$libdir/liborrery.so.$major" "$libdir/liborrery.so.$version" \
  "$libdir/liborrery.a" "$libdir/cmake/orrery/orreryConfig.cmake" "$libdir/cmake/orrery/orreryConfigVersion.cmake" bin/orrery \
  share/orrery/demo-q8_0.gguf share/orrery/demo-document.txt share/orrery/demo-questions.json \
  share/doc/orrery/README.md share/doc/orrery/LICENSE share/doc/orrery/LICENSE.xxhash \
  share/doc/orrery/LICENSE.nlohmann-json share/doc/orrery/examples/chat.c share/doc/orrery/examples/form.c share/doc/orrery/examples/tools.c; do
  [ -s "$prefix/$file" ] || fail "not installed: $file"
done
[ "$(find "$prefix/include" -type f | wc -l)" = 2 ] || fail "more than two headers are installed"
for text in "$prefix/$libdir/pkgconfig/orrery.pc" "$prefix/$libdir/cmake/orrery/"*; do
  ! grep -F -e "$source" -e "$build" -e "$work" "$text" || fail "$text names the build or the first prefix"
done

# What they are built with and run in: nothing of ours but the prefix.
clean() { env -i PATH="$PATH" HOME="$work" PKG_CONFIG_LIBDIR="$prefix/$libdir/pkgconfig" "$@"; }
model=$prefix/share/orrery/demo-q8_0.gguf
question='Who are you?'
answer='I am the Orrery demo model. I answer questions about the text that you give me.'

expect() {  # expect WHAT PROGRAM...: the known answer on one line
  what=$1
  shift
  said=$("$@") || fail "$what: exit status $?"
  [ "$said" = "$answer" ] || fail "$what: said '$said', expected '$answer'"
  echo "ok: $what"
}

[ "$(clean pkg-config --modversion orrery)" = "$version" ] || fail "pkg-config: version"
for language in c cpp; do
  if [ $language = c ]; then compile="$cc -std=c99"; else compile="$cxx -std=c++17"; fi
  ! $compile -c consumer/consumer.$language -o /dev/null 2>/dev/null || fail "a header of the system is found: not this test's"
  clean $compile -Wall -Wextra -Werror consumer/consumer.$language -o shared_$language \
    $(clean pkg-config --cflags --libs orrery) -Wl,-rpath,"$prefix/$libdir"
  expect "pkg-config, shared, $language" clean ./shared_$language "$model" "$question"
  clean $compile -Wall -Wextra -Werror consumer/consumer.$language -o static_$language -static \
    $(clean pkg-config --static --cflags --libs orrery)
  expect "pkg-config, static, $language" clean ./static_$language "$model" "$question"
done

# C alone and C++ are different cases to CMake: the first has no C++ compiler to link with.
for languages in C CXX; do
  clean "$cmake" -S consumer -B cmake_$languages -DLANGUAGES=$languages -DCMAKE_PREFIX_PATH="$prefix" \
    -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" >cmake.log 2>&1 &&
    clean "$cmake" --build cmake_$languages >>cmake.log 2>&1 || { cat cmake.log; fail "find_package, $languages"; }
  for kind in shared static; do
    expect "find_package, $kind, $languages" clean ./cmake_$languages/consumer_$kind "$model" "$question"
  done
  ! readelf -d cmake_$languages/consumer_static | grep -q liborrery || fail "orrery::static links the shared library"
done

# What the README shows is a program.
sed -n '/^```c$/,/^```$/p' "$prefix/share/doc/orrery/README.md" | sed '/^```/d' >ask.c
[ -s ask.c ] || fail "README.md shows no program"
clean $cc -std=c99 -Wall -Wextra -Werror ask.c $(clean pkg-config --cflags --libs orrery) -Wl,-rpath,"$prefix/$libdir" -o ask
ln -sf "$model" model.gguf
said=$(clean ./ask) || fail "the program of README.md: exit status $?"
[ -n "$said" ] || fail "the program of README.md said nothing"
echo "ok: the program of README.md"

# The example compiles as it stands, and the tool runs from where it was moved to.
clean $cc -std=c99 -Wall -Wextra -Werror "$prefix/share/doc/orrery/examples/chat.c" -I"$prefix/include" -L"$prefix/$libdir" -lorrery \
  -Wl,-rpath,"$prefix/$libdir" -o chat
echo "$question" | clean ./chat "$model" >chat.out 2>chat.err || { cat chat.err; fail "chat.c"; }
[ -s chat.out ] || fail "chat.c said nothing"
clean "$prefix/bin/orrery" --version | grep -qF "$version" || fail "orrery --version"
expect "the installed tool" clean "$prefix/bin/orrery" run "$model" "$question"
