#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# smoke.sh BENCHMARK…: whether each of these programs runs, not how fast: two at a time, the output of each in one piece.
set -euo pipefail
export BENCHMARK_DRY_RUN=true

run() {
  local output
  if ! output=$("$1" 2>&1); then
    printf '%s\n%s: FAILED\n' "$output" "$1"
    return 255 # ends xargs
  fi
  printf '%s\n%s\n' "$1" "$output"
}
export -f run

# shellcheck disable=SC2016 # for the inner shell
printf '%s\0' "$@" | xargs -0 -n 1 -P 2 bash -c 'run "$1"' --
