#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check-vendor-compile.sh cuda|hip KOKKOS_INCLUDE [-D…]…: compiles every source of backends/, kernels/, tiers/ and the
# benchmarks of GPUs, and every other device source of the project, for sm_90 with nvcc or gfx942 with hipcc, on a
# machine that has neither the GPU nor a Kokkos built for it. Kokkos' own headers are copied from KOKKOS_INCLUDE (those
# of a build for any backend) with the five generated configuration headers switched to the vendor; nothing is linked.
# With cuda, the example of CUDA graphs is compiled, too.
# The sources are those of the CMake targets, and compile in batches; -DCMAKE_UNITY_BUILD=OFF compiles each alone. Then
# check_isa.py looks at the instructions of the copy kernels. Public headers are left to the headers' own check: no
# vendor's name is in them.
# Exit code: 0 all compiled and kept the rules; 1 something did not; 77 the toolchain is absent.
set -euo pipefail
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
readonly vendor=${1:?cuda or hip} headers=${2:?folder of the Kokkos headers} options=("${@:3}")
readonly build=$checkout/build/vendor-$vendor
readonly package=$build/kokkos
readonly isa=$build/isa
readonly kernels=(launch align_launch step_launch sum_launch)
readonly kernel_objects=kernels/CMakeFiles/stateport_kernels.dir/src/gpu

absent() {
  printf 'check-vendor-compile: %s: not checked. %s\n' "$vendor" "$1" >&2
  exit 77
}

find_toolchain() {
  case $vendor in
    cuda)
      PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
      command -v nvcc >/dev/null || absent "nvcc was not found on PATH, in CUDA_HOME or in /usr/local/cuda/bin"
      ;;
    hip)
      PATH=$PATH:${ROCM_PATH:-/opt/rocm}/bin
      command -v hipcc >/dev/null || absent "hipcc was not found on PATH, in ROCM_PATH or in /opt/rocm/bin"
      ;;
    *)
      printf 'check-vendor-compile: unknown vendor: %s\n' "$vendor" >&2
      exit 1
      ;;
  esac
  [ -f "$headers/Kokkos_Core.hpp" ] || {
    printf 'check-vendor-compile: no Kokkos_Core.hpp in %s\n' "$headers" >&2
    exit 1
  }
}

# define FILE MACRO…: turns the commented #undef of a generated header into a #define.
define() {
  local file=$1 macro
  shift
  for macro in "$@"; do
    sed -i "s|^/\* #undef $macro \*/|#define $macro|" "$file"
    grep -q "^#define $macro$" "$file" || {
      printf 'check-vendor-compile: %s knows no %s: Kokkos has changed\n' "$file" "$macro" >&2
      exit 1
    }
  done
}

# switch_headers NAME SETUP ARCH…: NAME as in Kokkos_Fwd_NAME.hpp, SETUP as in Kokkos_Setup_SETUP.hpp.
switch_headers() {
  local name=$1 setup=$2 include=$package/include kind folder
  shift 2
  mkdir -p "$include"
  cp -r "$headers/." "$include/"
  sed -i 's|^#define KOKKOS_ENABLE_OPENMP$|/* #undef KOKKOS_ENABLE_OPENMP */|' "$include/KokkosCore_config.h"
  define "$include/KokkosCore_config.h" "KOKKOS_ENABLE_$name" KOKKOS_ENABLE_SERIAL "$@"
  for kind in Declare Fwd; do
    folder=${kind,,}
    folder=${folder/declare/decl}
    # The host space first: the device's headers use it.
    printf '#pragma once\n#include <%s_SERIAL.hpp>\n#include <%s_%s.hpp>\n' "$folder/Kokkos_$kind" \
      "$folder/Kokkos_$kind" "$name" >"$include/KokkosCore_Config_${kind}Backend.hpp"
  done
  printf '#pragma once\n#include <setup/Kokkos_Setup_%s.hpp>\n' "$setup" >"$include/KokkosCore_Config_SetupBackend.hpp"
  define "$include/desul/atomics/Config.hpp" "DESUL_ATOMICS_ENABLE_$name"
}

# write_package DEVICE OPTION…: a CMake package of headers alone, as a Kokkos built for DEVICE as a language would be.
write_package() {
  local device=$1
  shift
  cat >"$package/KokkosConfig.cmake" <<TEXT
set(Kokkos_VERSION $(awk '/define KOKKOS_VERSION_MAJOR/ {a = $3} /VERSION_MINOR/ {b = $3} /VERSION_PATCH/ {c = $3}
  END {print a "." b "." c}' "$package/include/KokkosCore_config.h"))
set(Kokkos_DEVICES $device SERIAL)
set(Kokkos_ENABLE_$device ON)
set(Kokkos_COMPILE_LANGUAGE $device)
set(Kokkos_launch_compiler_FOUND TRUE)
set(Kokkos_separable_compilation_FOUND TRUE)
add_library(Kokkos::kokkos INTERFACE IMPORTED)
target_include_directories(Kokkos::kokkos INTERFACE "\${CMAKE_CURRENT_LIST_DIR}/include")
target_compile_options(Kokkos::kokkos INTERFACE $*)
TEXT
  printf 'set(PACKAGE_VERSION 99)\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n' >"$package/KokkosConfigVersion.cmake"
}

compile() {
  local objects
  cmake -S "$checkout" -B "$build/objects" -G Ninja -DCMAKE_BUILD_TYPE=Release -DKokkos_DIR="$package" \
    -DSTATEPORT_BUILD_TESTS=ON -DSTATEPORT_BUILD_APPS=ON -DSTATEPORT_BUILD_PERF=ON -DSTATEPORT_FETCH_DEPENDENCIES=OFF -DCMAKE_UNITY_BUILD=ON "$@" \
    ${options[@]+"${options[@]}"} >"$build/configure.log" 2>&1 || {
    cat "$build/configure.log"
    return 1
  }
  mapfile -t objects < <(cmake --build "$build/objects" -- -t targets all |
    sed -nE 's,^((backends|kernels|tiers|perf/CMakeFiles/(stateport_)?gpu_[a-z_]*\.dir)/.*\.(cpp|cxx)\.o): .*,\1,p; t; s,^(.*\.cpp\.o): (CUDA|HIP)_COMPILER.*,\1,p' |
    grep -v '_verify_interface_header_sets\.dir' | grep -vxF "$(printf "$kernel_objects/%s.cpp.o\n" "${kernels[@]}")")
  [ "${#objects[@]}" -gt 0 ] || { printf 'check-vendor-compile: no sources found\n' >&2 && return 1; }
  compile_kernels || return
  cmake --build "$build/objects" -- -k 0 "${objects[@]}"
  printf 'check-vendor-compile: %s: %s sources compiled\n' "$vendor" "$((${#objects[@]} + ${#kernels[@]}))"
}

# compile_kernels: the sources of the copy kernels, beside each other, keeping instructions that can be read.
compile_kernels() {
  local kernel process waiting=() status=0
  rm -rf "$isa"
  mkdir -p "$isa"
  for kernel in "${kernels[@]}"; do
    compile_kernel "$kernel" &
    waiting+=($!)
  done
  for process in "${waiting[@]}"; do wait "$process" || status=1; done
  return "$status"
}

compile_kernel() {
  local object=$kernel_objects/$1.cpp.o command log=$isa/$1.ptxas
  command=$(cd "$build/objects" && ninja -t commands -s "$object")
  case $vendor in
    cuda) command+=" --keep --keep-dir $isa -Xptxas -v" ;;
    hip) command+=" -save-temps=obj" ;;
  esac
  (cd "$build/objects" && mkdir -p "$kernel_objects" && bash -c "$command") >"$log" 2>&1 || {
    cat "$log"
    return 1
  }
  [ "$vendor" = cuda ] || cp "$build/objects/$kernel_objects/$1"-hip-*.s "$isa/$1.s"
}

# inspect: looks at the instructions that were kept.
inspect() {
  command -v python3 >/dev/null || {
    printf 'check-vendor-compile: %s: python3 is not here: instructions were not looked at\n' "$vendor" >&2
    return 0
  }
  python3 -B "$checkout/cmake/check_isa.py" "$vendor" "$isa"
}

# compile_example: the example that captures a graph, as a user's compiler compiles it.
compile_example() {
  local public=() layer
  for layer in core parts backends kernels tiers; do public+=(-I "$checkout/$layer/include"); done
  "${CXX:-g++}" -std=c++20 -fsyntax-only -Wall -Wextra -Wno-missing-field-initializers -DHAS_CUDA_TOOLKIT \
    -isystem "$(dirname "$(dirname "$(command -v nvcc)")")/include" "${public[@]}" \
    "$checkout/examples/cuda-graph/main.cpp"
}

find_toolchain
cmake -P "$checkout/cmake/StateportEnvironment.cmake" "$build/objects"
mkdir -p "$package"
if [ "$vendor" = cuda ]; then
  switch_headers CUDA Cuda KOKKOS_ARCH_HOPPER KOKKOS_ARCH_HOPPER90
  write_package CUDA '$<$<COMPILE_LANGUAGE:CUDA>:--extended-lambda>'
  # CMake before 3.25.2 does not know that nvcc 12 takes C++20; these two say so.
  compile -DSTATEPORT_BACKEND=CUDA -DCMAKE_CUDA_ARCHITECTURES=90 -DCMAKE_CUDA_COMPILER="$(command -v nvcc)" \
    -DCMAKE_CUDA20_STANDARD_COMPILE_OPTION=-std=c++20 -DCMAKE_CUDA20_EXTENSION_COMPILE_OPTION=-std=c++20
  compile_example
else
  switch_headers HIP HIP KOKKOS_ARCH_AMD_GPU KOKKOS_ARCH_AMD_GFX942
  write_package HIP
  compile -DSTATEPORT_BACKEND=HIP -DCMAKE_HIP_ARCHITECTURES=gfx942
fi
inspect
