#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Events of stateport under Dynamo's own reader, as it is published: tests/engines/dynamo/run.sh
# Dynamo's runtime is installed in the cache folder (300 MB); STATEPORT_WHEEL names a wheel of stateport that is not built
# then. Exit code 77: it could not be made, and why.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=cmake/provision/common.sh
. "$here/../../../cmake/provision/common.sh"
# shellcheck source=tests/engines/common.sh
. "$here/../common.sh"

folder=$cache/engines/dynamo
python=$(engine_python 10 13) || impossible "no Python from 3.10 to 3.13"
provide_engine "$folder" "$python" 1 "$here/requirements.txt" "ai-dynamo-runtime==$(pinned ai-dynamo-runtime)"
provide_stateport "$folder"
say "Dynamo $(pinned ai-dynamo-runtime), $("$python" --version)"
run_python "$folder" "$here/event_peer.py" || fail "Dynamo reads other events"
say "Dynamo: all good"
