#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the two wheels, installs each into a fresh virtual environment, and runs its tests there: cmake/bootstrap.sh
# test-python. Arguments go to pytest. Needs python3 (pip, venv) and what the library needs; numpy, torch, pytest,
# pytest-xdist, mypy and ruff are taken from the machine's Python where it has them, else from PyPI, as transformers is.
# Exit code 77: all that was tested is good, but something cannot be had here, and what needs it was skipped.
set -euo pipefail
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
absent=()  # what could not be had, so that not everything was tested
readonly checkout out=$checkout/build/python
cd "$checkout"

say() {
  printf 'test-python: %s\n' "$*"
}

# has MODULE…: whether the machine's Python has them all.
has() {
  python3 -c 'import importlib.util, sys; sys.exit(any(not importlib.util.find_spec(name) for name in sys.argv[1:]))' "$@"
}

# wheel NAME OPTION…: builds a wheel into build/python/NAME. All wheels share the objects of one build folder.
wheel() {
  local name=$1 isolation=()
  shift
  ! has scikit_build_core pathspec || isolation=(--no-build-isolation)
  say "building the wheel '$name'"
  rm -rf "${out:?}/$name"
  cmake -P cmake/StateportEnvironment.cmake "$out/build"
  python3 -m pip wheel . -q --no-deps ${isolation[@]+"${isolation[@]}"} --disable-pip-version-check -w "$out/$name" \
    --config-settings=build-dir="$out/build" "$@"
}

# environment NAME: a fresh virtual environment in build/python/env-NAME with the wheel NAME and nothing of the checkout.
environment() {
  rm -rf "$out/env-$1"
  python3 -m venv --system-site-packages "$out/env-$1"
  local missing=() module
  for module in numpy pytest xdist; do
    has "$module" || missing+=("${module/#xdist/pytest-xdist}")
  done
  "$out/env-$1/bin/pip" install -q --disable-pip-version-check "$out/$1"/*.whl ${missing[@]+"${missing[@]}"}
}

# pinned ENGINE: its requirement in python/engines.toml, for example transformers==5.23.*
pinned() {
  sed -n "s/^$1 = \"\(.*\)\"\$/$1==\1/p" python/engines.toml
}

# test_before: the adapter for transformers with the version before the newest one, which has another interface. One
# test of each kind: the newest one has all.
test_before() {
  local before=$out/transformers-before version
  version=$(sed -n 's/^transformers-before = "\(.*\)"$/\1/p' python/engines.toml)
  rm -rf "$before"
  "$out/env-stateport/bin/pip" install -q --disable-pip-version-check --no-deps --target "$before" \
    "transformers==$version" || {
    absent+=("transformers $version")
    return
  }
  say "tests of the adapter with transformers $version"
  PYTHONPATH=$before "$out/env-stateport/bin/python" -m pytest -p no:cacheprovider --numprocesses auto \
    python/tests/transformers_adapter/{prefix_cache,sizes,tenants}_test.py \
    "python/tests/transformers_adapter/conversations_test.py::test_turns_give_the_same_bits_as_the_same_passes_without_a_cache"
}

install_engines() {
  local wanted=(transformers) engine
  has torch || wanted=(torch transformers)
  for engine in "${wanted[@]}"; do
    "$out/env-stateport/bin/pip" install -q --disable-pip-version-check "$(pinned "$engine")" || absent+=("$engine")
  done
  "$out/env-stateport/bin/pip" install -q --disable-pip-version-check msgspec pyzmq prometheus_client ||
    absent+=("msgspec, pyzmq, prometheus_client")
}

check_types_and_style() {
  local tool
  for tool in mypy ruff; do
    command -v "$tool" >/dev/null || {
      absent+=("$tool")
      continue
    }
    case $tool in
      mypy) mypy ;;
      ruff) ruff check python apps/report docs examples/python ;;
    esac
  done
}

check_types_and_style
wheel stateport --config-settings=cmake.define.STATEPORT_CORE_ONLY=OFF
environment stateport
wheel core --config-settings=cmake.define.STATEPORT_CORE_ONLY=ON
install_engines
say "tests of the wheel"
STATEPORT_WHEEL=$(echo "$out"/stateport/*.whl) "$out/env-stateport/bin/python" -m pytest python/tests \
  --ignore python/tests/core_only -p no:cacheprovider --numprocesses auto "$@"
test_before
say "the cost of Python beyond the library, as a smoke test"
"$out/env-stateport/bin/python" perf/python_overhead.py --rounds 3
say "the benchmark of the adapter for transformers, dry"
"$out/env-stateport/bin/python" -B perf/gpu/transformers_bench.py --device cpu --library "$(
  "$out/env-stateport/bin/python" -c 'import stateport; print(stateport.library_path())')" || [ $? = 77 ]
environment core
say "tests of the core-only wheel"
STATEPORT_WHEEL=$(echo "$out"/core/*.whl) "$out/env-core/bin/python" -m pytest python/tests/core_only \
  -p no:cacheprovider
if [ ${#absent[@]} -gt 0 ]; then
  say "NOT EVERYTHING WAS TESTED, because these cannot be had here: ${absent[*]}"
  exit 77
fi
