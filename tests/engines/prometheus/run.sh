#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The boards of Grafana against a real Prometheus: tests/engines/prometheus/run.sh [ARGUMENTS OF board.py…]
#   A cache over tiers, and the connector for vLLM under the stand-in for vLLM, serve for half a minute, beside the
#   metrics of the linker for SGLang; Prometheus scrapes all; every query of the boards is asked over its HTTP API.
#   promtool checks the texts.
# prometheus and promtool come from STATEPORT_PROMETHEUS (a folder) or PATH (Debian package: prometheus); they listen
# on free ports of the loopback device. Grafana is not run. Exit code 77: there is none, or no prometheus_client.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=cmake/provision/common.sh
. "$here/../../../cmake/provision/common.sh"
# shellcheck source=tests/engines/common.sh
. "$here/../common.sh"

cd "$checkout"
python=${STATEPORT_TEST_PYTHON:-build/python/env-stateport/bin/python}
in_environment() {
  cmake/bootstrap.sh exec env PATH="${STATEPORT_PROMETHEUS:-/usr/bin}:$PATH" OMP_NUM_THREADS=1 \
    ${STATEPORT_LIBRARY:+STATEPORT_LIBRARY="$STATEPORT_LIBRARY"} ${PYTHONPATH:+PYTHONPATH="$PYTHONPATH"} \
    "$python" -B "$@"
}

in_environment -c 'import stateport, prometheus_client, torch' ||
  impossible "no Python with stateport, torch and prometheus_client: cmake/bootstrap.sh test-python makes one"
status=0
in_environment "$here/board.py" "$@" || status=$?
[ "$status" != 77 ] || impossible "prometheus is not here (Debian package: prometheus)"
[ "$status" = 0 ] || fail "a query of a board has no answer"
say "boards: all good"
