#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SGLang as it is published beside stateport, on the CPU: tests/engines/sglang/run.sh [FOLDER]
#   1. Random streams on its prefix cache (Rust core and Python core) and on ours: every answer is compared.
#   2. The same operations on both, timed (row R3).
#   3. The adapters to its linker and its storage, over its real trees and pools.
# SGLang is installed in FOLDER, by default in the cache folder. STATEPORT_TEST_FIRST_SEED and STATEPORT_TEST_SEEDS say
# which streams, STATEPORT_WHEEL names a wheel that is not built then. Exit code 77: it could not be made, and why.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=cmake/provision/common.sh
. "$here/../../../cmake/provision/common.sh"
# shellcheck source=tests/engines/common.sh
. "$here/../common.sh"

readonly engine=${1:-$cache/engines/sglang} first=${STATEPORT_TEST_FIRST_SEED:-0} seeds=${STATEPORT_TEST_SEEDS:-500}
# The interpreters that its Rust core has wheels for.
python=$(engine_python 11 13) || impossible "no Python from 3.11 to 3.13"
provide_engine "$engine" "$python" 8 "$here/requirements.txt" "sglang==$(pinned sglang)"
provide_stateport "$engine"
loaded=$(library "$engine")
cd "$here"

failed=()
say "SGLang $(pinned sglang), $("$python" --version): streams $first to $((first + seeds - 1)) of each kind"
for core in rust python; do
  for policy in lru all; do
    run_python "$engine" -W ignore tree_streams.py "$loaded" --core "$core" --policy "$policy" \
      --seeds "$first:$((first + seeds))" || failed+=("streams of the $core core, policy $policy")
  done
done
say "row R3: stateport through ctypes is to be 3 times as fast as the Rust core, 50 times as the Python core"
run_python "$engine" -W ignore tree_timing.py "$loaded" || failed+=(timing)
say "events under SGLang's classes"
run_python "$engine" -W ignore "$here/../event_peer.py" sglang || failed+=(events)
say "adapters"
run_python "$engine" -W ignore -m pytest -q -p no:cacheprovider "$checkout/python/tests/sglang" ||
  failed+=("tests of the adapters")
[ ${#failed[@]} = 0 ] || fail "$(printf '%s; ' "${failed[@]}")"
say "SGLang: all good"
