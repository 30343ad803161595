#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check-install.sh: installs build/openmp and uses it from a project outside of the build tree: static and shared, by
# find_package, pkg-config and add_subdirectory, with every compiler of g++ and clang++ that is here.
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

# use_package KIND PREFIX
use_package() {
  local kind=$1 prefix=$2 compiler build
  for compiler in "${compilers[@]}"; do
    build=$folder/$kind-$compiler
    quietly cmake -S "$checkout/tests/install" -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" \
      -DCMAKE_PREFIX_PATH="$prefix"
    quietly cmake --build "$build"
    printf 'check-install: find_package, %s, %s: ' "$kind" "$compiler"
    "$build/consumer"
  done
}

# use_pkg_config KIND PREFIX
use_pkg_config() {
  local kind=$1 prefix=$2 compiler flags library_folder
  library_folder=$(dirname "$(dirname "$(find "$prefix" -name stateport.pc)")")
  for compiler in "${compilers[@]}"; do
    read -ra flags <<<"$(PKG_CONFIG_PATH=$library_folder/pkgconfig pkg-config --cflags --libs stateport)"
    quietly "$compiler" -std=c++20 "$checkout/tests/install/main.cpp" -o "$folder/pkg-config-$kind" "${flags[@]}"
    printf 'check-install: pkg-config, %s, %s: ' "$kind" "$compiler"
    LD_LIBRARY_PATH=$library_folder "$folder/pkg-config-$kind"
  done
}

quietly cmake --install "$checkout/build/openmp" --prefix "$folder/static"
use_package static "$folder/static"
use_pkg_config static "$folder/static"

quietly cmake -S "$checkout/tests/install" -B "$folder/subproject" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DSTATEPORT_SOURCE="$checkout" -DSTATEPORT_BACKEND=OPENMP -DBUILD_SHARED_LIBS=ON
quietly cmake --build "$folder/subproject"
printf 'check-install: add_subdirectory, shared: '
"$folder/subproject/consumer"
quietly cmake --install "$folder/subproject" --prefix "$folder/shared"
use_package shared "$folder/shared"
use_pkg_config shared "$folder/shared"
