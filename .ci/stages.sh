# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Stages of .ci/run and .ci/deep: their times, their slowest tests, and what both need. Sourced by them, in the checkout.
# shellcheck source=cmake/provision/common.sh
. cmake/provision/common.sh
# shellcheck source=cmake/provision/apt.sh
. cmake/provision/apt.sh
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
only=()          # stages that were asked for; none: all
summary=()       # a line for each stage that ran
declare -A used  # seconds of processor of each stage that passed, by name
absent=0         # stages whose toolchain is not here

wanted() {
  local name
  [ ${#only[@]} -gt 0 ] || return 0
  for name in "${only[@]}"; do
    [ "$name" != "$1" ] || return 0
  done
  return 1
}

# processor_s: sets processor_s to the seconds of processor that the commands of this shell have used so far.
processor_s() {
  local user system
  times >"$logs/times"
  { read -r _ && read -r user system; } <"$logs/times"
  local sum=0 part
  for part in "$user" "$system"; do
    part=${part%%.*} # 1m2.345s
    sum=$((sum + 60 * ${part%%m*} + ${part##*m}))
  done
  processor_s=$sum
}

# slowest_tests LOG: the tests that took longest of what ctest and pytest printed.
slowest_tests() {
  {
    sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) \.+ +Passed +([0-9.]+) sec.*/\2 s \1/p' "$1"
    sed -nE 's/^([0-9.]+)s (call|setup|teardown) +([^ ]+).*/\1 s \3/p' "$1"
  } | sort -rn | head -n 6 | sed 's/^/      /'
}

# stage NAME COMMAND…: runs it without input, tells its times, and ends the run when it fails. Exit code 77: its
# toolchain is not here; 75: its time was up.
stage() {
  local name=$1 began=$SECONDS status=0 before tests
  shift
  wanted "$name" || return 0
  printf '\n=== %s\n' "$name"
  processor_s
  before=$processor_s
  "$@" </dev/null 2>&1 | tee "$logs/stage" || status=${PIPESTATUS[0]}
  processor_s
  local took="$((SECONDS - began)) s, $((processor_s - before)) s of processor"
  case $status in
    0)
      summary+=("$name: passed in $took")
      # shellcheck disable=SC2034 # for those who source this
      used[$name]=$((processor_s - before))
      ;;
    77)
      summary+=("$name: NOT CHECKED, its toolchain is absent on this machine")
      absent=$((absent + 1))
      ;;
    75) summary+=("$name: NOT FINISHED in $took: run it again with the same results file") ;;
    *)
      printf '=== %s: FAILED (exit code %s) after %s\n' "$name" "$status" "$took"
      exit 1
      ;;
  esac
  printf '=== %s\n' "${summary[-1]}"
  tests=$(grep -E '^(([0-9]+% tests|[0-9]+) passed|[0-9]+ mutants)' "$logs/stage" | tail -n 2 | paste -sd ';' || true)
  [ -z "$tests" ] || summary+=("    $tests")
  tests=$(slowest_tests "$logs/stage")
  [ -z "$tests" ] || summary+=("$tests")
}

# in_environment COMMAND…: where the dependencies are.
in_environment() {
  cmake/bootstrap.sh exec "$@"
}

# A stage's functions run where bash does not heed errexit: each step says so itself.
workflow() {
  in_environment cmake -P cmake/StateportEnvironment.cmake "build/$1" &&
    OMP_WAIT_POLICY=passive in_environment cmake --workflow --preset "$1"
}

# check_tools PACKAGE…: compilers and tools that only checks use; they go into the Debian root, if the machine uses one.
check_tools() {
  local place
  place=$(cmake/bootstrap.sh where) || return 1
  printf 'environment: %s\n' "$place"
  case $place in
    root*) cmake/bootstrap.sh install "$@" ;;
  esac
}

# tell_summary: the table of all stages that ran.
tell_summary() {
  printf '\n=== all stages, %s s\n' "$SECONDS"
  printf '%s\n' "${summary[@]}"
  [ "$absent" = 0 ] || printf '%s stages were not checked on this machine\n' "$absent"
}
