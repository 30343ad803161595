# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Packages of the machine's own distribution, fetched and unpacked beside the system: the apt state is private, nothing
# is installed, and root is not needed. Sourced after common.sh.
: "${cache:?}"

readonly kokkos_version_min=4.6

# apt_private COMMAND…: apt-get with the machine's sources, keys and proxies, and with lists and cache of our own. The
# archive's release file may be older than it allows for: its signature counts, not its date.
apt_private() {
  local state=$cache/apt
  mkdir -p "$state/lists/partial" "$state/archives/partial"
  apt-get -q -o Dir::State="$state" -o Dir::State::lists="$state/lists" -o Dir::State::status=/var/lib/dpkg/status \
    -o Dir::Cache="$state" -o Dir::Cache::archives="$state/archives" -o Debug::NoLocking=true \
    -o APT::Sandbox::User="$(id -un)" -o Acquire::Check-Valid-Until=false -o Acquire::Languages=none "$@"
}

# apt_candidate PACKAGE: the version that apt would install, empty if there is none.
apt_candidate() {
  apt-cache -o Dir::State="$cache/apt" -o Dir::State::lists="$cache/apt/lists" -o Dir::Cache="$cache/apt" \
    -o Dir::State::status=/var/lib/dpkg/status policy "$1" 2>/dev/null |
    sed -n 's/^ *Candidate: *\([^(].*\)$/\1/p'
}

# Debian's Kokkos names two archives that it does not ship and whose code is all in headers; CMake checks that the
# files exist. An archive without members is these eight bytes.
complete_kokkos_package() {
  local libraries name
  for libraries in "$1"/usr/lib/*/cmake/Kokkos; do
    [ -d "$libraries" ] || continue
    for name in libkokkosalgorithms.a libkokkossimd.a; do
      [ -e "$libraries/../../$name" ] || printf '!<arch>\n' >"$libraries/../../$name"
    done
  done
}

# Libraries that the system has were not fetched again: they appear in the prefix, beside the development links and
# CMake files that expect them there, as links to the system's.
link_system_libraries() {
  local link library
  find "$1" -xtype l -name '*.so' | while read -r link; do
    for library in "/usr/lib/$(basename "$(dirname "$link")")/$(basename "$(readlink "$link")")"*; do
      [ ! -e "$library" ] || ln -sf "$library" "$(dirname "$link")/"
    done
  done
}

# prefix_provide NAME PACKAGE…: makes $cache/prefix-NAME hold the packages and what they need beyond the system's own;
# sets `prefix`. A prefix made before from the same list is used again.
prefix_provide() {
  local name=$1 recipe partial archive
  shift
  prefix=$cache/prefix-$name
  recipe="$(sed -n 's/^PRETTY_NAME=//p' /etc/os-release) $*"
  complete "$prefix" "$recipe" && return 0
  command -v apt-get >/dev/null || return 1
  partial=$prefix.partial
  discard "$partial"
  discard "$prefix"
  say "fetching $* into $prefix (nothing is installed)"
  logged "prefix-$name-update" apt_private update || return 1
  rm -f "$cache"/apt/archives/*.deb
  logged "prefix-$name-download" apt_private install -y --download-only --no-install-recommends "$@" || return 1
  mkdir -p "$partial"
  for archive in "$cache"/apt/archives/*.deb; do
    [ -e "$archive" ] || continue
    dpkg-deb -x "$archive" "$partial" || return 1
  done
  complete_kokkos_package "$partial"
  link_system_libraries "$partial"
  printf '%s\n' "$recipe" >"$partial/.stateport-complete"
  mv "$partial" "$prefix"
}

# Whether the distribution packages a Kokkos that is new enough.
apt_has_kokkos() {
  command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
  logged apt-update apt_private update || return 1
  local version
  version=$(apt_candidate libkokkos-dev)
  [ -n "$version" ] && dpkg --compare-versions "$version" ge "$kokkos_version_min"
}
