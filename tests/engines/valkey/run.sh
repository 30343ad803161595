#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ValkeyStore on a real server: tests/engines/valkey/run.sh [ARGUMENTS OF DOCTEST…]
#   The contract of every store, with a password and with TLS; random batches; lost pieces; a full server; a server that
#   is killed in the middle of puts, is silent, comes back. STATEPORT_TEST_SEEDS says how many random runs.
# Servers of its own are started on free ports of the loopback device, in temporary folders. valkey-server comes from
# STATEPORT_VALKEY_SERVER or PATH, in the environment of cmake/bootstrap.sh. Exit code 77: there is none, or no hiredis.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=cmake/provision/common.sh
. "$here/../../../cmake/provision/common.sh"
# shellcheck source=tests/engines/common.sh
. "$here/../common.sh"

readonly build=${STATEPORT_BUILD_FOLDER:-build/openmp}
cd "$checkout"
in_environment() {
  cmake/bootstrap.sh exec env STATEPORT_TEST_SEEDS="${STATEPORT_TEST_SEEDS:-100}" \
    ${STATEPORT_VALKEY_SERVER:+STATEPORT_VALKEY_SERVER="$STATEPORT_VALKEY_SERVER"} "$@"
}

[ -f "$build/build.ninja" ] || cmake/bootstrap.sh exec cmake --preset openmp -B "$build"
in_environment ninja -C "$build" -t query test-valkey >/dev/null 2>&1 ||
  impossible "hiredis is not here (Debian package: libhiredis-dev)"
in_environment ninja -C "$build" test-valkey
status=0
in_environment "$build/bin/test-valkey" "$@" || status=$?
[ "$status" != 77 ] || impossible "valkey-server is not here (Debian package: valkey-server)"
[ "$status" = 0 ] || fail "ValkeyStore fails its tests"
say "Valkey: all good"
