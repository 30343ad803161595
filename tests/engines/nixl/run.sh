#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# States handed over from one group of ranks to another by NIXL as it is published: tests/engines/nixl/run.sh
# [ARGUMENTS OF PYTEST…]
# All ranks are processes here, which NIXL joins over the loopback device. It is installed in the cache folder (400 MB);
# STATEPORT_WHEEL names a wheel of stateport that is not built then. Exit code 77: it could not be made, and why.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=cmake/provision/common.sh
. "$here/../../../cmake/provision/common.sh"
# shellcheck source=tests/engines/common.sh
. "$here/../common.sh"

folder=$cache/engines/nixl
python=$(engine_python 10 13) || impossible "no Python from 3.10 to 3.13"
provide_engine "$folder" "$python" 1 "$here/requirements.txt" "nixl-cu12==$(pinned nixl-cu12)"
provide_stateport "$folder"
export UCX_TLS=${UCX_TLS:-tcp,shm,self} UCX_LOG_LEVEL=${UCX_LOG_LEVEL:-error} NIXL_LOG_LEVEL=${NIXL_LOG_LEVEL:-ERROR}
run_python "$folder" -c 'import nixl_cu12._api' >"$folder/import.log" 2>&1 ||
  impossible "NIXL does not start here: $(tail -n 1 "$folder/import.log")"
say "NIXL $(pinned nixl-cu12), $("$python" --version)"
run_python "$folder" -m pytest -q -p no:cacheprovider "$here/handover_test.py" "$@" || fail "hand-overs by NIXL fail"
run_python "$folder" -m stateport.demo.handover
say "NIXL: all good"
