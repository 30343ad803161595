# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Stages of .ci/run and .ci/deep: their times, their slowest tests, and functions that both use. They source
# this file in the checkout.
# shellcheck source=cmake/provision/common.sh
. cmake/provision/common.sh
# shellcheck source=cmake/provision/apt.sh
. cmake/provision/apt.sh
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export LC_ALL=C   # `times` prints decimal points
only=()          # stages that were asked for; none: all
declare -A met   # stages that there are, by name
summary=()       # a line for each stage that ran
declare -A used  # seconds of processor of each stage that passed, by name
absent=0         # stages whose toolchain is not here
unfinished=0     # stages whose time was up

wanted() {
  local name
  [ ${#only[@]} -gt 0 ] || return 0
  for name in "${only[@]}"; do
    [ "$name" != "$1" ] || return 0
  done
  return 1
}

# read_processor: sets processor_s to the seconds of processor that the commands of this shell have used so far.
read_processor() {
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

# slowest_tests LOG: the six slowest tests in the output of ctest and pytest.
slowest_tests() {
  {
    sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) \.+ +Passed +([0-9.]+) sec.*/\2 s \1/p' "$1"
    sed -nE 's/^([0-9.]+)s (call|setup|teardown) +([^ ]+).*/\1 s \3/p' "$1"
  } | sort -rn | sed -n '1,6s/^/      /p'
}

# stage NAME COMMAND…: runs it without input, tells its times, and ends the run when it fails. Exit code 77: its
# toolchain is not here; 75: its time was up.
stage() {
  local name=$1 began=$SECONDS status=0 before tests
  shift
  met[$name]=yes
  wanted "$name" || return 0
  printf '\n=== %s\n' "$name"
  read_processor
  before=$processor_s
  "$@" </dev/null 2>&1 | tee "$logs/stage" || status=${PIPESTATUS[0]}
  read_processor
  local took="$((SECONDS - began)) s, $((processor_s - before)) s of processor"
  case $status in
    0)
      summary+=("$name: passed in $took")
      # shellcheck disable=SC2034 # .ci/run and .ci/deep read it
      used[$name]=$((processor_s - before))
      ;;
    77)
      summary+=("$name: NOT CHECKED, its toolchain is absent on this machine")
      absent=$((absent + 1))
      ;;
    75)
      summary+=("$name: NOT FINISHED in $took: run it again with the same results file")
      unfinished=$((unfinished + 1))
      ;;
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

# build PRESET [-D…]… [TARGET…]: configures with these options, and builds all or these targets.
build() {
  local preset=$1 options=() targets=() argument
  shift
  for argument; do
    case $argument in
      -D*) options+=("$argument") ;;
      *) targets+=(--target "$argument") ;;
    esac
  done
  in_environment cmake -P cmake/StateportEnvironment.cmake "build/$preset" &&
    in_environment cmake --preset "$preset" ${options[@]+"${options[@]}"} &&
    in_environment cmake --build --preset "$preset" ${targets[@]+"${targets[@]}"}
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

# host_libraries: sets prefix to a folder with the libraries of core for the machine's own compilers.
host_libraries() {
  prefix_provide core libfmt-dev robin-map-dev libxxhash-dev libssl-dev doctest-dev nlohmann-json3-dev libcli11-dev \
    libbenchmark-dev zlib1g-dev || fail "the libraries of core cannot be had from this machine's package archive"
}

# core_on_host SEEDS [-D…]…: core with the machine's own compiler and these options of CMake, with at most SEEDS seeds a
# test.
core_on_host() {
  local seeds=$1
  shift
  if ! command -v cmake >/dev/null || ! command -v ninja >/dev/null || ! command -v g++ >/dev/null; then
    printf 'no cmake, ninja or g++ is installed on the machine itself\n'
    return 77
  fi
  g++ --version | sed -n 1p
  host_libraries && cmake -P cmake/StateportEnvironment.cmake build/core &&
    CMAKE_PREFIX_PATH=$prefix/usr cmake --preset core "$@" &&
    cmake --build --preset core -j 2 && STATEPORT_TEST_SEEDS_MAX=$seeds ctest --preset core -j 2
}

# compile_cuda [-D…]…: every device source and its instructions, for sm_90. nvcc supports the machine's compiler rather than
# that of Debian unstable, so it runs outside of the root, against the root's Kokkos headers.
compile_cuda() {
  local place headers=/usr/include/kokkos
  place=$(cmake/bootstrap.sh where) && host_libraries || return
  [ "${place#* }" = "$place" ] || headers=${place#* }/usr/include/kokkos
  CMAKE_PREFIX_PATH=$prefix/usr bash cmake/check-vendor-compile.sh cuda "$headers" "$@"
}

# compile_hip [-D…]…: the same with hipcc, for gfx942.
compile_hip() {
  in_environment bash cmake/check-vendor-compile.sh hip /usr/include/kokkos "$@"
}

# tell_summary: the table of all stages that ran. Exit code 1: a stage was asked for that is not there; 75: the time of
# one was up.
tell_summary() {
  local name
  for name in ${only[@]+"${only[@]}"}; do
    [ -n "${met[$name]:-}" ] || fail "there is no stage $name" "there are: ${!met[*]}"
  done
  printf '\n=== all stages, %s s\n' "$SECONDS"
  printf '%s\n' "${summary[@]}"
  [ "$absent" = 0 ] || printf '%s stages were not checked on this machine\n' "$absent"
  [ "$unfinished" = 0 ] || return 75
}
