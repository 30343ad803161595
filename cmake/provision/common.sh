# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Messages, the cache folder and its lock, for cmake/bootstrap.sh and .ci/run. Sourced, never run.

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
cache=${STATEPORT_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/stateport}
# shellcheck disable=SC2034 # for those who source this
readonly checkout cache

# say TEXT: one line of progress, on stderr, so that stdout stays the program's own.
say() {
  printf 'stateport: %s\n' "$*" >&2
}

# fail PROBLEM ADVICE…: says what went wrong and what to do, one advice a line, and ends the run.
fail() {
  printf 'stateport: error: %s\n' "$1" >&2
  shift
  local advice
  for advice in "$@"; do
    printf '  * %s\n' "$advice" >&2
  done
  exit 1
}

# do_it COMMAND…: prints the command and runs it; where dry_run is set it only prints it.
do_it() {
  printf '+ %s\n' "$*"
  [ "${dry_run:-}" ] || "$@"
}

# nvidia_arch GPU: Kokkos' name of a compute capability without its point.
nvidia_arch() {
  case $1 in
    80) printf AMPERE80 ;;
    90) printf HOPPER90 ;;
    100) printf BLACKWELL100 ;;
    *) return 1 ;;
  esac
}

# logged NAME COMMAND…: runs a long command with its output in a file; shows the end of it when it fails.
logged() {
  local log=$cache/logs/$1.log
  shift
  mkdir -p "$cache/logs"
  if ! "$@" >"$log" 2>&1 </dev/null; then
    tail -n 25 "$log" >&2
    say "the whole output is in $log"
    return 1
  fi
}

# lock FD FILE WHAT: takes an exclusive lock, waiting while another run holds it.
lock() {
  mkdir -p "$(dirname "$2")" || fail "cannot write to $(dirname "$2")" "name another cache folder: STATEPORT_CACHE_DIR"
  command -v flock >/dev/null || return 0
  eval "exec $1>\"\$2\""
  if ! flock -n "$1"; then
    say "another run is busy with $3: waiting for it"
    flock "$1"
  fi
}

unlock() {
  eval "exec $1>&-"
}

# complete FOLDER RECIPE: whether FOLDER was finished, and with this recipe.
complete() {
  [ -f "$1/.stateport-complete" ] && [ "$(cat "$1/.stateport-complete")" = "$2" ]
}

# discard FOLDER: removes a half-made or outdated folder without leaving its file system.
discard() {
  [ -e "$1" ] || return 0
  rm -rf --one-file-system "$1" || fail "cannot remove $1" "remove it by hand and run this again"
}
