#!/bin/bash
# Builds the peer that `make bench` measures beside Orrery: peer.sh [FOLDER [avx2]], build/peer by default, which git ignores.
#
# llama.cpp comes inside the source package of llama-cpp-python, fetched by pip from wherever pip fetches.  llama-bench,
# llama-batched-bench and llama-quantize are built from it, static, for this processor: every AVX switch that it has, named
# one by one; with `avx2` those up to AVX2.  Never AMX, whose path in this version crashes when GCC 12 builds it; so
# GGML_NATIVE, which would switch it on, stays off.
# What has been built is not built again; FOLDER/BUILT says what it is, and so does this script's last line.
set -euo pipefail
version=0.3.36
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=${1:-$root/build/peer}
most=${2:-all}
programs=(llama-bench llama-batched-bench llama-quantize)
own=peer_logits   # a program of ours over its libraries (beside_peer.py)
jobs=${JOBS:-$(nproc)}

fail() { echo "peer.sh: $*" >&2; exit 1; }

has() { grep -qw -m1 "$1" /proc/cpuinfo; }
on() { if has "$1" && { [ "$most" = all ] || [[ $1 != *avx512* && $1 != avx_vnni ]]; }; then echo ON; else echo OFF; fi; }

[ "$most" = all ] || [ "$most" = avx2 ] || fail "'$most' is neither all nor avx2"
[ "$(uname -m)" = x86_64 ] || fail "knows the switches of x86-64 alone"
switches=(SSE42="$(on sse4_2)" AVX="$(on avx)" AVX2="$(on avx2)" FMA="$(on fma)" F16C="$(on f16c)" BMI2="$(on bmi2)"
  AVX_VNNI="$(on avx_vnni)" AVX512="$(on avx512bw)" AVX512_VBMI="$(on avx512_vbmi)" AVX512_VNNI="$(on avx512_vnni)"
  AVX512_BF16="$(on avx512_bf16)" AMX_TILE=OFF AMX_INT8=OFF AMX_BF16=OFF)
lit=$(printf '%s\n' "${switches[@]}" | sed -n 's/=ON$//p' | paste -sd ' ')

compiler=$("${CXX:-c++}" --version | sed -n 1p)
built="llama.cpp of llama-cpp-python $version, $compiler, Release, static, switches: $lit"
complete=yes
for program in "${programs[@]}" $own; do [ -x "$folder/$program" ] || complete=no; done
if [ $complete = yes ] && [ "$(cat "$folder/BUILT" 2>/dev/null)" = "$built" ]; then
  echo "$built"
  exit 0
fi

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
source=$folder/llama_cpp_python-$version/vendor/llama.cpp
if [ ! -f "$source/CMakeLists.txt" ]; then
  archive=$folder/llama_cpp_python-$version.tar.gz
  if [ ! -f "$archive" ]; then
    # A source package's metadata are made with the tools that it asks for: pip fetches these too, for the moment.
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python --dest "$folder" \
      "llama-cpp-python==$version" >"$folder/download.log" 2>&1 || { tail -5 "$folder/download.log" >&2; fail "pip could not fetch the source package"; }
  fi
  tar -xzf "$archive" -C "$folder" "llama_cpp_python-$version/vendor/llama.cpp"
fi

generator=()
if [ ! -f "$folder/cmake/CMakeCache.txt" ] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
cmake -S "$source" -B "$folder/cmake" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DLLAMA_OPENSSL=OFF \
  -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DGGML_NATIVE=OFF \
  "${switches[@]/#/-DGGML_}" >"$folder/build.log" 2>&1 || { tail -20 "$folder/build.log" >&2; fail "cmake failed"; }
cmake --build "$folder/cmake" -j"$jobs" --target "${programs[@]}" >>"$folder/build.log" 2>&1 ||
  { tail -20 "$folder/build.log" >&2; fail "the build failed; all of it is in $folder/build.log"; }
ln -sf "${programs[@]/#/cmake/bin/}" "$folder/"
libraries=$folder/cmake/ggml/src
"${CXX:-c++}" -O2 -std=c++17 -I"$source/include" -I"$source/ggml/include" "$root/tests/bench/$own.cpp" -o "$folder/$own" \
  "$folder/cmake/src/libllama.a" "$libraries/libggml.a" "$libraries/libggml-cpu.a" "$libraries/libggml-base.a" -fopenmp -ldl -lpthread \
  >>"$folder/build.log" 2>&1 || { tail -5 "$folder/build.log" >&2; fail "$own does not compile"; }
echo "$built" >"$folder/BUILT"
echo "$built"
