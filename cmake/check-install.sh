#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check-install.sh: installs build/openmp and uses it from a project outside of the build tree, from C++ and from C:
# static and shared, by find_package, pkg-config and add_subdirectory, with every compiler of g++ and clang++ that is
# here. Builds and runs the examples. Looks at what the shared libraries export.
set -euo pipefail
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
readonly checkout folder
compilers=()
for compiler in g++ clang++; do
  if command -v "$compiler" >/dev/null; then
    compilers+=("$compiler")
  else
    printf 'check-install: %s is not here: not checked\n' "$compiler"
  fi
done

# quietly COMMAND…: shows the output when the command fails.
quietly() {
  "$@" >"$folder/log" 2>&1 || {
    cat "$folder/log" >&2
    return 1
  }
}

# c_compiler NAME: the C compiler that belongs to g++ or clang++.
c_compiler() {
  case $1 in
    g++) printf gcc ;;
    *) printf '%s' "${1%++}" ;;
  esac
}

# use_package KIND PREFIX
use_package() {
  local kind=$1 prefix=$2 compiler build
  for compiler in "${compilers[@]}"; do
    build=$folder/$kind-$compiler
    quietly cmake -S "$checkout/tests/install" -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" \
      -DCMAKE_C_COMPILER="$(c_compiler "$compiler")" -DCMAKE_PREFIX_PATH="$prefix"
    quietly cmake --build "$build"
    printf 'check-install: find_package, %s, %s: ' "$kind" "$compiler"
    "$build/consumer"
    "$build/consumer_c"
    "$build/consumer_c_core"
  done
}

# use_pkg_config KIND PREFIX
use_pkg_config() {
  local kind=$1 prefix=$2 compiler flags library_folder program=$folder/pkg-config-$1
  library_folder=$(dirname "$(dirname "$(find "$prefix" -name stateport.pc)")")
  export PKG_CONFIG_PATH=$library_folder/pkgconfig
  for compiler in "${compilers[@]}"; do
    read -ra flags <<<"$(pkg-config --cflags --libs stateport)"
    quietly "$compiler" -std=c++20 "$checkout/examples/hello-states/main.cpp" \
      "$checkout/tests/install/without_kokkos.cpp" -o "$program" "${flags[@]}"
    printf 'check-install: pkg-config, %s, %s: ' "$kind" "$compiler"
    LD_LIBRARY_PATH=$library_folder "$program"
    read -ra flags <<<"$(pkg-config --cflags --libs stateport-c)"
    quietly "$(c_compiler "$compiler")" -std=c11 "$checkout/tests/install/main.c" -o "$program" "${flags[@]}"
    LD_LIBRARY_PATH=$library_folder "$program"
    read -ra flags <<<"$(pkg-config --cflags --libs stateport-c-core)"
    quietly "$(c_compiler "$compiler")" -std=c11 "$checkout/tests/install/core.c" -o "$program" "${flags[@]}"
    LD_LIBRARY_PATH=$library_folder "$program"
  done
}

# run_examples KIND PREFIX COMPILER
run_examples() {
  local build=$folder/examples-$1
  quietly cmake -S "$checkout/examples" -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="$3" -DCMAKE_PREFIX_PATH="$2" \
    -DCMAKE_CXX_FLAGS="-Wall -Wextra -Wno-missing-field-initializers -Werror"
  quietly cmake --build "$build"
  quietly ctest --test-dir "$build" --no-tests=error --output-on-failure
  printf 'check-install: examples, %s, %s: %s\n' "$1" "$3" "$(grep -E 'tests passed' "$folder/log")"
}

# share_through_a_server KIND: the example of a shared store, on a server of Valkey.
share_through_a_server() {
  local port=$((20000 + RANDOM % 20000)) server status=0
  if ! command -v valkey-server >/dev/null; then
    printf 'check-install: valkey-server is not here: no example shares states through a server\n'
    return
  fi
  valkey-server --port "$port" --bind 127.0.0.1 --save '' --dir "$folder" >"$folder/server" &
  server=$!
  for _ in {1..50}; do
    [ "$(valkey-cli -p "$port" ping 2>/dev/null)" != PONG ] || break
    sleep 0.1
  done
  printf 'check-install: examples, %s, through Valkey: ' "$1"
  "$folder/examples-$1/tiers/shared-store" "valkey://127.0.0.1:$port/0" || status=$?
  kill "$server"
  wait "$server" || true
  return "$status"
}

# check_exports PREFIX: every symbol that a shared library defines for others is stateport's, and has a version.
check_exports() {
  local library symbols strange
  for library in "$1"/lib*/libstateport-*.so; do
    symbols=$(nm --dynamic --defined-only --demangle "$library" | cut -d ' ' -f 3- | grep -v '^STATEPORT_[0-9.]*$')
    strange=$(grep -vE '^((typeinfo( name)?|vtable|VTT|guard variable) for |(non-)?virtual thunk to )?stateport(::|_).*@@STATEPORT_[0-9.]+$' \
      <<<"$symbols" || true)
    if [ -n "$strange" ]; then
      printf 'check-install: %s exports more than versioned symbols of stateport:\n%s\n' "$library" "$strange" >&2
      return 1
    fi
    printf 'check-install: %s: %s symbols, all of stateport, all versioned\n' "$(basename "$library")" \
      "$(wc -l <<<"$symbols")"
  done
}

quietly cmake --install "$checkout/build/openmp" --prefix "$folder/static"
[ -s "$folder/static/share/stateport/stateport.cdx.json" ] || {
  printf 'check-install: no bill of materials is installed\n' >&2
  exit 1
}
use_package static "$folder/static"
use_pkg_config static "$folder/static"
run_examples static "$folder/static" "${compilers[0]}"
share_through_a_server static

quietly cmake -S "$checkout/tests/install" -B "$folder/subproject" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DCMAKE_UNITY_BUILD=ON \
  -DSTATEPORT_SOURCE="$checkout" -DSTATEPORT_BACKEND=OPENMP -DBUILD_SHARED_LIBS=ON
quietly cmake --build "$folder/subproject"
printf 'check-install: add_subdirectory, shared: '
"$folder/subproject/consumer"
"$folder/subproject/consumer_c"
"$folder/subproject/consumer_c_core"
quietly cmake --install "$folder/subproject" --prefix "$folder/shared"
use_package shared "$folder/shared"
use_pkg_config shared "$folder/shared"
run_examples shared "$folder/shared" "${compilers[-1]}"
check_exports "$folder/shared"
