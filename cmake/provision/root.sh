# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# A Debian root of its own, in the cache folder, for machines whose distribution has no recent Kokkos or no compiler.
# It is entered with chroot inside a private mount namespace. Sourced after common.sh and apt.sh.
: "${cache:?}" "${checkout:?}"

readonly root=$cache/root
readonly suite=${STATEPORT_DEBIAN_SUITE:-unstable}
readonly keyring=/usr/share/keyrings/debian-archive-keyring.gpg
readonly library_packages=(libkokkos-dev libfmt-dev robin-map-dev libxxhash-dev libssl-dev
  doctest-dev libbenchmark-dev nlohmann-json3-dev libcli11-dev libhiredis-dev zlib1g-dev)
# A server for the tests of ValkeyStore, and what makes a certificate for it.
readonly root_packages=(g++ cmake ninja-build git python3 pkg-config ca-certificates valkey-server openssl
  "${library_packages[@]}")
# shellcheck disable=SC2034 # for cmake/bootstrap.sh
readonly python_packages=(python3-pip python3-venv python3-scikit-build-core python3-numpy python3-torch python3-pytest
  python3-pytest-xdist mypy ruff)
# shellcheck disable=SC2034
readonly report_packages=(python3-matplotlib)
# shellcheck disable=SC2034
readonly docs_packages=(doxygen python3-sphinx python3-breathe python3-myst-parser furo python3-numpy)
# llama.cpp with its CPU backends, which ggml_backend_load_all() finds by itself; its server; models of random weights.
# shellcheck disable=SC2034
readonly llamacpp_packages=(libllama-dev libggml-dev llama.cpp-tools python3-gguf)
# shellcheck disable=SC2034
readonly llamacpp_sdist_packages=(python3-gguf python3-pip)
# Mounts made in a namespace of its own end with the command. Inside a chroot, unshare cannot make them private first;
# there they are as private as the chroot's own.
isolated=(unshare --mount --)
"${isolated[@]}" true 2>/dev/null || isolated=(unshare --mount --propagation unchanged --)
# root_enter ROOT FOLDER COMMAND…: runs COMMAND in FOLDER inside ROOT.
readonly root_enter=("${isolated[@]}" bash "$checkout/cmake/provision/enter-root.sh")

# The archives that the machine's own apt uses, whatever the format of its sources, one a line.
apt_archives() {
  apt-get update --print-uris 2>/dev/null | sed -n "s|^'\(https\{0,1\}://.*\)/dists/.*InRelease'.*|\1|p" |
    grep -v security | awk '!seen[$0]++'
}

# Prints the first archive that has the suite.
debian_mirror() {
  if [ -n "${STATEPORT_DEBIAN_MIRROR:-}" ]; then
    printf '%s\n' "$STATEPORT_DEBIAN_MIRROR"
    return 0
  fi
  local archive
  while read -r archive; do
    if /usr/lib/apt/apt-helper download-file "$archive/dists/$suite/Release" "$cache/suite-release" \
      >/dev/null 2>&1 && grep -q '^Origin: Debian$' "$cache/suite-release"; then
      printf '%s\n' "$archive"
      return 0
    fi
  done < <(apt_archives)
  return 1
}

# Exports the proxy that apt is told to use, for programs that know only the environment.
export_proxies() {
  local proxy
  proxy=$(apt-config dump Acquire::http::Proxy | sed -n 's/^Acquire::http::Proxy "\(.*\)";$/\1/p')
  if [ -n "$proxy" ] && [ "$proxy" != DIRECT ] && [ -z "${http_proxy:-}" ]; then
    export http_proxy=$proxy
  fi
}

require_debootstrap() {
  command -v debootstrap >/dev/null && return 0
  say "installing debootstrap: it makes the root, and is all that is installed on this system"
  export DEBIAN_FRONTEND=noninteractive
  logged debootstrap-update apt-get -o Acquire::Check-Valid-Until=false update ||
    fail "apt-get update failed" "check /etc/apt/sources.list and the network"
  logged debootstrap-install apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends debootstrap ||
    fail "debootstrap could not be installed" "install it by hand, then run this again"
}

# root_configure FOLDER MIRROR: apt of the root: its archive, the machine's proxies and certificates, small and fast.
root_configure() {
  local conf=$1/etc/apt/apt.conf.d/90stateport
  printf 'deb %s %s main\n' "$2" "$suite" >"$1/etc/apt/sources.list"
  {
    apt-config dump Acquire | grep -iE '::proxy' || true
    printf '%s "%s";\n' Acquire::Check-Valid-Until false Acquire::Languages none APT::Install-Recommends false \
      APT::Sandbox::User root
  } >"$conf"
  printf 'force-unsafe-io\n' >"$1/etc/dpkg/dpkg.cfg.d/stateport"
  if [ -f /etc/ssl/certs/ca-certificates.crt ]; then
    mkdir -p "$1/etc/ssl/certs"
    cp /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/"
  fi
}

# root_provide: makes the root unless a complete one of the same recipe is there. A root that an interrupted run left
# is made anew.
root_provide() {
  local recipe="$suite ${root_packages[*]}" partial=$root.partial mirror
  complete "$root" "$recipe" && return 0
  [ "$(id -u)" = 0 ] || fail "this way needs root: it makes a Debian root and enters it with chroot" \
    "run it as root" "or install the dependencies (docs/building.md)"
  if ! command -v apt-get >/dev/null || ! command -v unshare >/dev/null; then
    fail "a Debian root is made with apt and unshare, which this machine lacks" "install the dependencies by hand"
  fi
  [ ! -e "$partial" ] || say "removing $partial, which an interrupted run left half made"
  discard "$partial"
  discard "$root"
  require_debootstrap
  mirror=$(debian_mirror) || fail "no archive in this machine's apt sources has Debian $suite" \
    "name one: STATEPORT_DEBIAN_MIRROR=http://… cmake/bootstrap.sh test"
  [ -f "$keyring" ] || fail "no $keyring to check the archive's signature with" "install debian-archive-keyring"
  export_proxies
  mkdir -p "$partial"
  say "step 1 of 2: a minimal Debian $suite in $root (its Kokkos is recent), from $mirror: about half a minute"
  # Isolated: what debootstrap mounts is gone when it ends.
  logged debootstrap "${isolated[@]}" debootstrap --variant=minbase --keyring="$keyring" \
    "$suite" "$partial" "$mirror" ||
    fail "debootstrap failed" "read the lines above; run this again, the half-made root is made anew"
  root_configure "$partial" "$mirror"
  say "step 2 of 2: compiler, CMake, Kokkos and the other dependencies in it: about a minute"
  root_install "$partial" "${root_packages[@]}"
  complete_kokkos_package "$partial"
  printf '%s\n' "$recipe" >"$partial/.stateport-complete"
  mv "$partial" "$root"
  say "the root is ready; later runs use it again. To make it anew, remove $root"
}

# root_install ROOT PACKAGE…
root_install() {
  local folder=$1
  shift
  local install='apt-get -q update && apt-get -q install -y --no-install-recommends "$@"'
  logged root-install "${root_enter[@]}" "$folder" / bash -c "$install" _ "$@" ||
    fail "the packages could not be installed in the root: $*" \
      "unstable is inconsistent at times: run this again later, or with STATEPORT_DEBIAN_SUITE=testing"
}
