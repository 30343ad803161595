# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# For tests that run engines as they are published: where they are installed, and stateport for their Python. Sourced
# after cmake/provision/common.sh.
: "${cache:?}" "${checkout:?}"

# impossible REASON: the test could not be made, which is no success and no failure.
impossible() {
  say "NOT RUN: $1"
  exit 77
}

# pinned ENGINE: its version in python/engines.toml.
pinned() {
  sed -n "s/^$1 = \"\(.*\)\"\$/\1/p" "$checkout/python/engines.toml"
}

# engine_python FIRST LAST: the first Python of this machine from 3.FIRST to 3.LAST. Engines have wheels for these.
engine_python() {
  local minor python
  for minor in $(seq "$2" -1 "$1"); do
    for python in "python3.$minor" python3; do
      if [ "$("$python" -c 'import sys; print(sys.version_info[1])' 2>/dev/null)" = "$minor" ]; then
        "$python" -c 'import sys; print(sys.executable)'
        return 0
      fi
    done
  done
  return 1
}

# provide_engine FOLDER PYTHON GIGABYTES REQUIREMENTS [PACKAGE…]: a virtual environment in FOLDER with the packages
# (without what they depend on) and the requirements, unless it is there already.
provide_engine() {
  local folder=$1 python=$2 gigabytes=$3 requirements=$4 recipe free
  shift 4
  recipe="$* $("$python" --version) $(cksum <"$requirements")"
  complete "$folder" "$recipe" && return 0
  mkdir -p "$folder" || impossible "cannot write to $folder"
  free=$(df --output=avail -BG "$folder" | tail -n 1 | tr -dc 0-9)
  [ "$free" -ge "$gigabytes" ] || impossible "$folder has $free GB free, and $gigabytes are needed"
  say "installing $* in $folder: some minutes, $gigabytes GB"
  rm -f "$folder/.stateport-complete"
  logged engine-venv "$python" -m venv --clear "$folder/venv" || impossible "no virtual environment with $python"
  logged engine-packages "$folder/venv/bin/pip" install --no-cache-dir --disable-pip-version-check --no-deps "$@" ||
    impossible "cannot be had from the package index: $*"
  logged engine-requirements "$folder/venv/bin/pip" install --no-cache-dir --disable-pip-version-check \
    -r "$requirements" || impossible "requirements of $* cannot be installed from the package index"
  printf '%s\n' "$recipe" >"$folder/.stateport-complete"
}

# provide_stateport FOLDER: installs the wheel of this checkout, or STATEPORT_WHEEL, in the engine's environment.
provide_stateport() {
  local wheel=${STATEPORT_WHEEL:-} out=build/engines
  if [ -z "$wheel" ]; then
    say "building the wheel"
    rm -rf "${checkout:?}/$out/wheel"
    "$checkout/cmake/bootstrap.sh" exec bash -c "cd '$checkout' && cmake -P cmake/StateportEnvironment.cmake $out/build &&
      isolation=--no-build-isolation && { python3 -c 'import scikit_build_core, pathspec' 2>/dev/null || isolation=; } &&
      python3 -m pip wheel . -q --no-deps \$isolation -w $out/wheel --config-settings=build-dir=$out/build" ||
      fail "the wheel could not be built" "read the lines above"
    wheel=$(echo "$checkout/$out/wheel"/*.whl)
  fi
  "$1/venv/bin/pip" install -q --disable-pip-version-check --no-deps --force-reinstall "$wheel"
}

# run_python FOLDER ARGUMENTS…: the engine's Python. A library that was built in the Debian root needs the C library
# and the loader of that root.
run_python() {
  local folder=$1 way root python site
  shift
  export PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
  read -r way root < <("$checkout/cmake/bootstrap.sh" where)
  if [ "$way" != root ]; then
    "$folder/venv/bin/python" "$@"
    return
  fi
  python=$(readlink -f "$folder/venv/bin/python")
  site=$("$folder/venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
  PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$site "$root/lib64/ld-linux-x86-64.so.2" --argv0 "$folder/venv/bin/python" \
    --library-path "$root/usr/lib/x86_64-linux-gnu:$(dirname "$python")/../lib" "$python" "$@"
}

# library FOLDER: the C library of the package that is installed there.
library() {
  run_python "$1" -c 'import stateport; print(stateport.library_path())'
}
