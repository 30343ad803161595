#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# llama.cpp as Debian has it: cmake/bootstrap.sh test-llamacpp [ARCHITECTURE…]
#   llama-server loads a tiny model of random weights of each architecture, answers the requests of scenario.py, and its
#   counts of tokens add up. build/llamacpp gets the models, and what the server computed.
# Exit code 77: it could not be made, and why.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=cmake/provision/common.sh
. "$here/../../../cmake/provision/common.sh"
# shellcheck source=tests/engines/common.sh
. "$here/../common.sh"

readonly out=build/llamacpp
cd "$checkout"
version=$(pkg-config --modversion llama 2>/dev/null) ||
  impossible "libllama is not here (Debian package: libllama-dev)"
[ "$version" = "$(pinned llamacpp)" ] ||
  fail "llama.cpp is $version here, and python/engines.toml has $(pinned llamacpp)" "test with it, then renew the line"
python3 -c 'import gguf' 2>/dev/null || impossible "python3 has no gguf (Debian package: python3-gguf)"
mkdir -p "$out"
free=$(df --output=avail -BG "$out" | tail -n 1 | tr -dc 0-9)
[ "$free" -ge 1 ] || impossible "$out has less than 1 GB free"

rm -rf "$out/models"
python3 -B "$here/models.py" "$out/models" "$@" >"$out/written"
while read -r model; do
  name=$(basename "$model" .gguf) status=0
  python3 -B "$here/server_peer.py" "$model" >"$out/server-$name.json" || status=$?
  [ "$status" != 77 ] || exit 77
  [ "$status" = 0 ] || fail "llama-server fails with the model $name"
done <"$out/written"

cmake --preset openmp >"$out/configured"
cmake --build --preset openmp --target test-llamacpp stateport-llama
STATEPORT_LLAMA_MODELS=$out/models OMP_NUM_THREADS=1 build/openmp/bin/test-llamacpp
say "llama.cpp $version: all good with $(wc -l <"$out/written") models"
