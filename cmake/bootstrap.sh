#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds, tests and runs stateport on a machine that may have nothing of what it needs. `--help` says how.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=cmake/provision/common.sh
. "$here/provision/common.sh"
# shellcheck source=cmake/provision/apt.sh
. "$here/provision/apt.sh"
# shellcheck source=cmake/provision/root.sh
. "$here/provision/root.sh"
readonly caller_folder=$PWD
way=
prefix=

usage() {
  cat <<TEXT
cmake/bootstrap.sh COMMAND: builds, tests and runs stateport for the CPU (preset openmp), providing what is missing.

  replay [ARGS…]     build stateport-replay and run it with ARGS (replay --help lists them)
  report FILE… --out PAGE
                     draw the JSON files of replays as a page of HTML, with this machine's python3 if it has
                     matplotlib, else in the environment; python3-matplotlib is added to a Debian root
  test               configure, build and run every test
  test-python [ARGS…]
                     build the Python wheels, install them into fresh virtual environments and run their tests there
  test-llamacpp [--sdist] [ARCHITECTURE…]
                     test beside llama.cpp; its Debian packages (37 MB, 5 s) are added to a Debian root.
                     --sdist: beside the version in the source archive of llama-cpp-python (7 minutes, once)
  docs               build the manual: build/docs/html/index.html
  exec COMMAND…      run COMMAND in the environment that has the dependencies, in the current folder
  shell              an interactive shell there, in the checkout
  install PACKAGE…   further Debian packages for that environment (Debian root only)
  where              say which way is taken, and its root folder or prefix if it has one
  --help

The first way that works is taken:
  installed   CMake 3.25, Ninja, a C++20 compiler, Kokkos 4.6 and the other dependencies are on this machine
  upstream    the same without some libraries, whose pinned releases can be downloaded
  packages    the distribution packages a recent Kokkos: packages are unpacked into the cache folder, not installed
  root        a Debian root in the cache folder, made with debootstrap; needs to be run as root

Environment:
  STATEPORT_WAY             take this way and no other
  STATEPORT_CACHE_DIR       where roots and unpacked packages are kept; now: $cache
  STATEPORT_DEBIAN_MIRROR   archive for the Debian root; default: the first in apt's configuration that has the suite
  STATEPORT_DEBIAN_SUITE    default: unstable
TEXT
}

tools_present() {
  local tool
  for tool in cmake ninja "${CXX:-c++}"; do
    command -v "$tool" >/dev/null || return 1
  done
  local version
  version=$(cmake --version | sed -n 's/^cmake version \([0-9.]*\).*/\1/p')
  [ "$(printf '%s\n3.25\n' "$version" | sort -V | head -n 1)" = 3.25 ]
}

# configures: whether the project configures with what is installed, tried in a folder that is then removed.
configures() {
  local folder result=0
  folder=$(mktemp -d)
  logged probe cmake -S "$checkout" -B "$folder" -G Ninja -DSTATEPORT_BACKEND=OPENMP \
    -DSTATEPORT_FETCH_DEPENDENCIES=OFF 2>/dev/null || result=1
  rm -rf "$folder"
  return "$result"
}

try_installed() {
  tools_present && configures
}

try_upstream() {
  tools_present && cmake -P "$here/provision/reachable.cmake" "$cache/reachable" >/dev/null 2>&1
}

try_packages() {
  tools_present && apt_has_kokkos || return 1
  prefix_provide openmp "${library_packages[@]}" || return 1
  export CMAKE_PREFIX_PATH=$prefix/usr${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
  configures
}

try_root() {
  root_provide
}

# Sets `way` to the first that works, and says why the ones before it do not.
choose_way() {
  local candidate
  lock 9 "$cache/lock" "the same cache folder"
  for candidate in ${STATEPORT_WAY:-installed upstream packages root}; do
    [ -z "$way" ] || break
    case $candidate in
      installed | upstream | packages | root) ;;
      *) fail "STATEPORT_WAY is $candidate" "it must be installed, upstream, packages or root" ;;
    esac
    if "try_$candidate"; then
      way=$candidate
    elif [ -z "${STATEPORT_WAY:-}" ] && complete "$root" "$suite ${root_packages[*]}"; then
      # A root is there because the ways before it did not work on this machine: do not ask the network again.
      way=root
    else
      explain_refusal "$candidate"
    fi
  done
  unlock 9
  [ -n "$way" ] || fail "the way $STATEPORT_WAY does not work on this machine" "see $cache/logs" \
    "leave STATEPORT_WAY unset"
}

explain_refusal() {
  case $1 in
    installed) say "not everything is installed here (CMake 3.25, Ninja, C++20 compiler, Kokkos 4.6, …)" ;;
    upstream) say "upstream releases cannot be used (no build tools, or not reachable)" ;;
    packages) say "this distribution has no Kokkos $kokkos_version_min or newer, or no build tools are installed" ;;
  esac
}

# run FOLDER COMMAND…: COMMAND in the environment, in FOLDER. Replaces this shell.
run() {
  local folder=$1
  shift
  if [ "$way" = root ]; then
    [ "$(id -u)" = 0 ] || fail "the Debian root is entered with chroot, which needs root" "run this as root"
    exec "${root_enter[@]}" "$root" "$folder" "$@"
  fi
  cd "$folder"
  exec "$@"
}

# steps COMMANDS: shell lines run in the checkout, in a build folder that this environment may use.
steps() {
  run "$checkout" bash -c "set -e; cmake -P cmake/StateportEnvironment.cmake build/openmp; $1"
}

parallel_defaults() {
  local cores
  cores=$(nproc 2>/dev/null || echo 2)
  export CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL:-$cores}
  export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$cores}
  # Two cores are shared by whatever runs beside: threads bound to cores would wait for each other.
  export OMP_PROC_BIND=${OMP_PROC_BIND:-false}
}

command_replay() {
  lock 8 "$checkout/build/.bootstrap.lock" "the build folder"
  say "building stateport-replay (preset openmp, way: $way)"
  (steps 'cmake --preset openmp && cmake --build --preset openmp --target stateport-replay' >&2) ||
    fail "stateport-replay could not be built" "read the lines above"
  unlock 8
  # Threads that wait must not spin: beside a few compilers a replay takes ten times as long then.
  export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
  run "$caller_folder" "$checkout/build/openmp/bin/stateport-replay" "$@"
}

# Python 3.10 is what apps/report needs.
draws_pages() {
  python3 -c 'import sys, matplotlib; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

command_report() {
  [ "$way" = here ] || provide_matplotlib
  run "$caller_folder" env "PYTHONPATH=$checkout/apps/report${PYTHONPATH:+:$PYTHONPATH}" python3 -B -m stateport_report "$@"
}

command_test() {
  # Elsewhere tests of pages are skipped where there is no matplotlib.
  if [ "$way" = root ]; then
    (provide_matplotlib) || say "python3-matplotlib cannot be installed in the Debian root: pages are not tested"
  fi
  lock 8 "$checkout/build/.bootstrap.lock" "the build folder"
  say "configure, build and test (preset openmp, way: $way)"
  # Several test programs share the cores: threads that wait must not spin.
  export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
  steps 'exec cmake --workflow --preset openmp'
}

command_test_python() {
  lock 8 "$checkout/build/.bootstrap.lock" "the build folder"
  provide_python
  say "wheels, and their tests in virtual environments (way: $way)"
  export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
  run "$checkout" bash python/tests/run.sh "$@"
}

# provide_python: what building and testing a wheel takes. On the machine itself: python3 with pip and venv, and PyPI.
provide_python() {
  if [ "$way" != root ]; then
    python3 -c 'import ensurepip, venv, pip' 2>/dev/null || fail "python3 has no pip or venv here" \
      "install python3-pip and python3-venv"
    # Libraries that were unpacked beside the system are not found by themselves.
    if [ "$way" = packages ]; then
      LD_LIBRARY_PATH=$(echo "$prefix"/usr/lib/*-linux-gnu)
      export LD_LIBRARY_PATH
    fi
    return 0
  fi
  add_to_root python "${python_packages[@]}"
}

# llama.cpp is not in every suite: where it cannot be had, nothing was tested.
command_test_llamacpp() {
  lock 8 "$checkout/build/.bootstrap.lock" "the build folder"
  local name=llamacpp packages=("${llamacpp_packages[@]}")
  [ "${1:-}" != --sdist ] || name=llamacpp-sdist packages=("${llamacpp_sdist_packages[@]}")
  if [ "$way" = root ]; then
    (add_to_root "$name" "${packages[@]}") || {
      say "NOT RUN: llama.cpp cannot be installed in the Debian root"
      exit 77
    }
  fi
  run "$checkout" bash tests/engines/llamacpp/run.sh "$@"
}

builds_manual() {
  command -v doxygen >/dev/null && python3 -c 'import breathe, furo, myst_parser, numpy, sphinx' 2>/dev/null
}

command_docs() {
  lock 8 "$checkout/build/.bootstrap.lock" "the build folder"
  if [ "$way" = root ]; then
    add_to_root docs "${docs_packages[@]}"
  else
    builds_manual || fail "the manual needs Doxygen, Sphinx, Breathe, MyST, Furo and numpy" \
      "install ${docs_packages[*]}"
  fi
  run "$checkout" bash docs/build.sh
}

provide_matplotlib() {
  if [ "$way" = root ]; then
    add_to_root report "${report_packages[@]}"
  else
    draws_pages || fail "python3 has no matplotlib here, or is older than 3.10" \
      "install python3-matplotlib, or matplotlib from PyPI"
  fi
}

# add_to_root NAME PACKAGE…: installs these packages in the Debian root, once; the root keeps the list under NAME.
add_to_root() {
  local mark=$root/.stateport-$1 recipe
  shift
  recipe="$suite $*"
  lock 9 "$cache/lock" "the same cache folder"
  if [ ! -f "$mark" ] || [ "$(cat "$mark")" != "$recipe" ]; then
    say "installing in the Debian root, about a minute: $*"
    root_install "$root" "$@"
    printf '%s\n' "$recipe" >"$mark"
  fi
  unlock 9
}

command_install() {
  [ "$way" = root ] || fail "packages can be added to the Debian root only; this machine uses the way '$way'" \
    "install them yourself: $*" "or use the root: STATEPORT_WAY=root"
  lock 9 "$cache/lock" "the same cache folder"
  say "installing in the Debian root: $*"
  root_install "$root" "$@"
}

command_where() {
  case $way in
    root) printf 'root %s\n' "$root" ;;
    packages) printf 'packages %s\n' "$prefix" ;;
    *) printf '%s\n' "$way" ;;
  esac
}

main() {
  local command=${1:---help}
  [ $# = 0 ] || shift
  case $command in
    replay | report | test | test-python | test-llamacpp | docs | install | where) ;;
    exec) [ $# -gt 0 ] || fail "exec needs a command" "for example: cmake/bootstrap.sh exec ctest --preset openmp" ;;
    shell) ;;
    -h | --help | help)
      usage
      return 0
      ;;
    *) fail "unknown command: $command" "cmake/bootstrap.sh --help lists them" ;;
  esac
  parallel_defaults
  if [ "$command" = report ] && draws_pages; then
    way=here
  else
    choose_way
  fi
  case $command in
    exec) run "$caller_folder" "$@" ;;
    shell) run "$checkout" bash ;;
    *) "command_${command//-/_}" "$@" ;;
  esac
}

main "$@"
