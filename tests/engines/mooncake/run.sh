#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# MooncakeStore on Mooncake as it is published: tests/engines/mooncake/run.sh [ARGUMENTS OF PYTEST…]
#   The contract of every remote store, random batches, a full store, a master that is killed in the middle of puts and
#   comes back. Then groups of ranks, each a process, that load what groups of another size stored: 4 to 2, 2 to 4,
#   3 to 1, 1 to 3 and pipelines, in other conv layouts and through int8, byte for byte; objects that were damaged,
#   removed or exchanged, and stores and writers that are killed; and engines that hit what another one computed. Then
#   perf/mooncake_overhead.py, what the way through MooncakeStore leaves of the client's own speed.
# The master and its clients run here, over the loopback device. Mooncake is installed in the cache folder (200 MB);
# STATEPORT_WHEEL names a wheel of stateport that is not built then. Exit code 77: it could not be made, and why.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=cmake/provision/common.sh
. "$here/../../../cmake/provision/common.sh"
# shellcheck source=tests/engines/common.sh
. "$here/../common.sh"

folder=$cache/engines/mooncake
python=$(engine_python 10 13) || impossible "no Python from 3.10 to 3.13"
provide_engine "$folder" "$python" 1 "$here/requirements.txt" \
  "mooncake-transfer-engine-non-cuda==$(pinned mooncake-transfer-engine-non-cuda)"
provide_stateport "$folder"
export MC_LOG_LEVEL=${MC_LOG_LEVEL:-ERROR} GLOG_minloglevel=${GLOG_minloglevel:-2}
run_python "$folder" -c 'import mooncake.store' >"$folder/import.log" 2>&1 ||
  impossible "Mooncake does not start here (Debian package: libibverbs1): $(tail -n 1 "$folder/import.log")"
say "Mooncake $(pinned mooncake-transfer-engine-non-cuda), $("$python" --version)"
run_python "$folder" -m pytest -q -p no:cacheprovider "$here/mooncake_test.py" "$@" || fail "MooncakeStore fails its tests"
run_python "$folder" -m pytest -q -p no:cacheprovider "$here/ranks_test.py" "$@" ||
  fail "ranks that share checkpoints through Mooncake fail their tests"
run_python "$folder" "$checkout/perf/mooncake_overhead.py" --rounds 15
say "Mooncake: all good"
