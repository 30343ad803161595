#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# pack.sh [--kokkos SOURCES] [--arch 90] [--jobs N] [--wheels FOLDER] [--dry-run]: builds tests and benchmarks for an NVIDIA GPU, on a
# machine that needs none, and packs what a machine with the GPU and without a network runs: README.md beside this file.
#   --kokkos   folder of Kokkos' sources, 4.6 or newer; without it CMake downloads the pinned release
#   --arch     compute capability without its point: 80, 90, 100
#   --jobs     compilers at once; default: one per processor
#   --wheels   folder of wheels of transformers and its needs to carry; without it pip downloads those for Python 3.12
#              (transformers as in python/engines.toml), and none are carried where it cannot
#   --dry-run  says what would run
# Other dependencies are found as always: installed, under CMAKE_PREFIX_PATH, or downloaded. What is built is kept in
# build/gpu-day and used again. Result: build/gpu-day/stateport-gpu-day.tar.xz.
set -euo pipefail
# shellcheck source=cmake/provision/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../cmake/provision/common.sh"
day=$checkout/build/gpu-day kokkos_sources='' wheels='' arch=90 jobs=$(nproc) dry_run=''
# The needs of transformers beside torch and numpy: the other machine may have an older version of each.
needs=('huggingface_hub>=1.31,<2' 'tokenizers>=0.23.1,<0.24' 'safetensors>=0.8' 'regex>=2025.10.22')
archive_bytes_max=$((50 << 20))
targets=(test-backends test-runtime test-kernels test-device test-c test-engine test-engine-moved-state
  stateport-tiny-engine gpu_copy_bench gpu_step_bench gpu_launch_cost_bench gpu_roof_bench stateport_c_loadable)

usage() { sed -n '3,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

while [ $# -gt 0 ]; do
  case $1 in
    --kokkos | --arch | --jobs | --wheels) [ $# -gt 1 ] || fail "$1 needs a value" ;;&
    --kokkos) kokkos_sources=$(cd "$2" && pwd -P) && shift 2 ;;
    --wheels) wheels=$(cd "$2" && pwd -P) && shift 2 ;;
    --arch) arch=$2 && shift 2 ;;
    --jobs) jobs=$2 && shift 2 ;;
    --dry-run) dry_run=1 && shift ;;
    --help) usage && exit ;;
    *) fail "unknown: $1; see --help" ;;
  esac
done
kokkos_arch=$(nvidia_arch "$arch") || fail "--arch $arch: 80, 90 or 100"
PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
nvcc=$(command -v nvcc) || fail "nvcc was not found on PATH, in CUDA_HOME or in /usr/local/cuda/bin"
[ -z "$kokkos_sources" ] || [ -f "$kokkos_sources/cmake/KokkosCore_config.h.in" ] || fail "no Kokkos in $kokkos_sources"
configure=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_COMPILER="$nvcc" -DCMAKE_CUDA_ARCHITECTURES="$arch"
  # CMake before 3.25.2 does not know that nvcc takes C++20.
  -DCMAKE_CUDA20_STANDARD_COMPILE_OPTION=-std=c++20 -DCMAKE_CUDA20_EXTENSION_COMPILE_OPTION=-std=c++20)

# The toolkit's version 13 has two functions with other arguments than Kokkos 4 calls them with. A copy is mended.
mended_kokkos() {
  local instance=$day/kokkos-sources/core/src/Cuda/Kokkos_Cuda_Instance.hpp
  rm -rf "$day/kokkos-sources"
  cp -r "$kokkos_sources" "$day/kokkos-sources"
  nvcc --version | grep -q 'release 1[3-9]' || return 0
  sed -i -e 's|(graph, from, to, numDependencies)|(graph, from, to, nullptr, numDependencies)|' \
    -e 's|(devPtr, count, dstDevice, m_stream)|(devPtr, count, {cudaMemLocationTypeDevice, dstDevice}, 0, m_stream)|' \
    "$instance"
}

build_kokkos() {
  [ -f "$day/kokkos/lib/cmake/Kokkos/KokkosConfig.cmake" ] && return
  do_it mended_kokkos
  do_it cmake -S "$day/kokkos-sources" -B "$day/kokkos-build" "${configure[@]}" -DCMAKE_INSTALL_PREFIX="$day/kokkos" \
    -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_CXX_STANDARD=20 -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DKokkos_ENABLE_CUDA=ON \
    -DKokkos_ENABLE_SERIAL=ON -DKokkos_ARCH_"$kokkos_arch"=ON -DKokkos_ENABLE_COMPILE_AS_CMAKE_LANGUAGE=ON \
    -DKokkos_ENABLE_DEPRECATED_CODE_4=OFF -DKokkos_ENABLE_IMPL_MDSPAN=OFF -DKokkos_ENABLE_IMPL_VIEW_LEGACY=ON
  do_it cmake --build "$day/kokkos-build" -j "$jobs"
  do_it cmake --install "$day/kokkos-build"
}

build_project() {
  if [ -n "$kokkos_sources" ]; then
    configure+=(-DKokkos_ROOT="$day/kokkos")
  else
    configure+=("-DKokkos_ARCH_$kokkos_arch=ON")
  fi
  do_it cmake -S "$checkout" -B "$day/project" "${configure[@]}" -DSTATEPORT_BACKEND=CUDA -DSTATEPORT_BUILD_TESTS=ON \
    -DSTATEPORT_BUILD_PERF=ON
  do_it cmake --build "$day/project" -j "$jobs" --target "${targets[@]}"
}

# carry_libraries FOLDER: what the programs load, but for the driver, comes along. The C library lies apart: it is used
# where that of the other machine is too old.
carry_libraries() {
  local folder=$1 library
  mkdir -p "$folder/lib" "$folder/glibc"
  ldd "$folder"/bin/* "$folder"/lib/*.so* 2>/dev/null | sed -nE 's/.*=> (\/[^ ]+) .*/\1/p; s/^\s(\/[^ ]+ld-linux[^ ]+) .*/\1/p' | sort -u |
    while read -r library; do
      case $(basename "$library") in
        libcuda.so*) ;;
        ld-linux* | libc.so* | libm.so* | libdl.so* | libpthread.so* | librt.so*) cp -L "$library" "$folder/glibc/" ;;
        libstateport*) ;;
        *) cp -L "$library" "$folder/lib/" ;;
      esac
    done
}

# carry_wheels FOLDER
carry_wheels() {
  local folder=$1/wheels version
  mkdir -p "$folder"
  if [ -n "$wheels" ]; then
    cp "$wheels"/*.whl "$folder/"
    return
  fi
  version=$(sed -n 's/^transformers = "\(.*\)"$/\1/p' "$checkout/python/engines.toml")
  python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: --python-version 3.12 \
    --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 -d "$folder" \
    "transformers==$version" "${needs[@]}" || printf 'pack.sh: no wheels of transformers are carried\n' >&2
}

# carry_python FOLDER: the package stateport with the file that its build would generate.
carry_python() {
  mkdir -p "$1/python"
  cp -r "$checkout/python/stateport" "$1/python/"
  find "$1/python" -name __pycache__ -prune -exec rm -rf {} +
  cp "$checkout/c/python/stateport_c.py" "$1/python/stateport/_c.py"
}

collect() {
  local folder=$day/stateport-gpu-day
  rm -rf "$folder"
  mkdir -p "$folder/bin" "$folder/lib"
  find "$day/project/bin" -maxdepth 1 -type f -executable ! -name torch_copy_bench ! -name transformers_bench -exec cp {} "$folder/bin/" \;
  find "$day/project" -name 'libstateport*.so*' -exec cp -P {} "$folder/lib/" \;
  strip "$folder"/bin/* "$folder"/lib/*.so* 2>/dev/null || true
  carry_libraries "$folder"
  mkdir -p "$folder/perf" "$folder/c" "$folder/apps"
  cp -r "$checkout/perf/gpu" "$checkout/perf/report" "$folder/perf/"
  cp -r "$checkout/apps/report" "$folder/apps/"  # draws the plots of perf/report
  cp -r "$checkout/c/python" "$folder/c/"
  carry_python "$folder"
  carry_wheels "$folder"
  mkdir -p "$folder/tests" && cp -r "$checkout/tests/device" "$folder/tests/"
  cp "$checkout/perf/gpu/day.sh" "$folder/"
  git -C "$checkout" describe --always --dirty >"$folder/git" 2>/dev/null || echo unknown >"$folder/git"
  sed -n 's/^#define KOKKOS_VERSION \([0-9]*\).*/\1/p' "$day/kokkos/include/KokkosCore_config.h" >"$folder/kokkos-version" 2>/dev/null || true
  tar -C "$day" -cJf "$day/stateport-gpu-day.tar.xz" stateport-gpu-day
  du -h "$day/stateport-gpu-day.tar.xz"
  [ "$(stat -c %s "$day/stateport-gpu-day.tar.xz")" -le "$archive_bytes_max" ] ||
    fail "stateport-gpu-day.tar.xz has more than $archive_bytes_max bytes: carry fewer wheels"
}

do_it mkdir -p "$day"
[ -z "$kokkos_sources" ] || build_kokkos
build_project
do_it collect
