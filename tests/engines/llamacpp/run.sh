#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# llama.cpp as Debian has it: cmake/bootstrap.sh test-llamacpp [ARCHITECTURE…]
#   For tiny models of random weights of each architecture: the tests of stateport::llamacpp; then llama-server and
#   stateport-llama serve the requests of scenario.py, with equal answers, and ours computes no more tokens than the
#   server. Then a chat that goes on in another process, and the example against the installed package.
#   build/llamacpp gets the models, and the tokens that each computed.
# Another version, in the source archive of llama-cpp-python: cmake/bootstrap.sh test-llamacpp --sdist [ARCHITECTURE…]
#   The tests of stateport::llamacpp alone: there is no llama-server to compare with. The cache folder keeps libllama,
#   whose build takes 4 minutes of processor time. build/llamacpp-sdist gets the tests and the models.
# Exit code 77: it could not be made, and why.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=cmake/provision/common.sh
. "$here/../../../cmake/provision/common.sh"
# shellcheck source=tests/engines/common.sh
. "$here/../common.sh"
# shellcheck source=tests/engines/llamacpp/sdist.sh
. "$here/sdist.sh"

# make_folder FOLDER: for models and results.
make_folder() {
  local free
  mkdir -p "$1"
  free=$(df --output=avail -BG "$1" | tail -n 1 | tr -dc 0-9)
  [ "$free" -ge 1 ] || impossible "$1 has less than 1 GB free"
}

# test_adapter BUILD FOLDER [ARCHITECTURE…]: the tests of stateport::llamacpp, with models in FOLDER/models.
test_adapter() {
  local build=$1 folder=$2
  shift 2
  rm -rf "$folder/models"
  python3 -B "$here/models.py" "$folder/models" "$@" >"$folder/written"
  cmake --build "$build" --target test-llamacpp
  STATEPORT_LLAMA_MODELS=$checkout/$folder/models "$build/bin/test-llamacpp"
}

test_sdist() {
  local folder=build/llamacpp-sdist engine=$cache/engines/llamacpp-sdist
  make_folder "$folder"
  provide_sdist "$engine" "$(pinned llama-cpp-python)"
  cmake --preset openmp -B "$folder" -DCMAKE_PREFIX_PATH="$engine/installed" >"$folder/configured"
  test_adapter "$folder" "$folder" "$@"
  ldd "$folder/bin/test-llamacpp" | grep -q "libllama[^ ]* => $engine/installed/" ||
    fail "the tests ran with another libllama"
  say "llama.cpp $(PKG_CONFIG_PATH=$engine/installed/lib/pkgconfig pkg-config --modversion llama): the tests pass;" \
    "without llama-server"
}

readonly out=build/llamacpp
cd "$checkout"
export OMP_NUM_THREADS=1
python3 -c 'import gguf' 2>/dev/null || impossible "python3 has no gguf (Debian package: python3-gguf)"
if [ "${1:-}" = --sdist ]; then
  shift
  test_sdist "$@"
  exit
fi
version=$(pkg-config --modversion llama 2>/dev/null) ||
  impossible "libllama is not here (Debian package: libllama-dev)"
[ "$version" = "$(pinned llamacpp)" ] ||
  fail "llama.cpp is $version here, and python/engines.toml has $(pinned llamacpp)" "test with it, then renew the line"
make_folder "$out"

rm -rf "$out/installed" "$out/example" "$out/images"
cmake --preset openmp >"$out/configured"
cmake --build --preset openmp >"$out/built" || fail "the library does not build: $out/built"
test_adapter build/openmp "$out" "$@"

export PATH=$checkout/build/openmp/bin:$PATH
while read -r model; do
  name=$(basename "$model" .gguf) status=0
  python3 -B "$here/server_peer.py" "$model" --answers "$out/requests.jsonl" >"$out/server-$name.json" || status=$?
  [ "$status" != 77 ] || exit 77
  [ "$status" = 0 ] || fail "llama-server fails with the model $name"
  stateport-llama replay --model "$model" "$out/requests.jsonl" >"$out/replayed-$name.jsonl"
  say "tokens computed, $name"
  python3 -B "$here/compare.py" "$out/server-$name.json" "$out/replayed-$name.jsonl" ||
    fail "stateport-llama does worse than llama-server with the model $name"
done <"$out/written"

# A conversation that goes on in another process.
model=$(head -n 1 "$out/written")
for _ in 1 2; do
  printf '%s\n' "$(seq -s ' ' 100)" "$(seq -s ' ' 50)" |
    stateport-llama chat --model "$model" --folder "$out/images" --output 20 >"$out/chat"
done
grep -qE '^\[[1-9][0-9]* of [0-9]+ tokens reused' <(grep -m 1 reused "$out/chat") ||
  fail "the second process reused nothing in its first turn: $out/chat"

cmake --install build/openmp --prefix "$out/installed" >/dev/null
cmake -S examples/llamacpp -B "$out/example" -G Ninja -DCMAKE_PREFIX_PATH="$checkout/$out/installed" >/dev/null
cmake --build "$out/example" >/dev/null
"$out/example/shared-prefix" "$model"
say "llama.cpp $version: all good with $(wc -l <"$out/written") models"
