#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# enter-root.sh ROOT FOLDER COMMAND…: runs COMMAND in FOLDER inside ROOT with a clean environment. Expects a mount
# namespace of its own (unshare --mount), so that the mounts end with the command. The checkout, the shared folder
# beside it, FOLDER and the folders of files named in the arguments appear in ROOT under their own paths.
set -euo pipefail
root=$1 folder=$2
shift 2
checkout=$(cd "$(dirname "$0")/../.." && pwd -P)
bound=()

# bind FOLDER: makes it appear in the root, unless it is there already or belongs to the system.
bind() {
  local path=$1 earlier
  [ -d "$path" ] || return 0
  case $path in
    / | /bin | /boot | /dev | /etc | /lib | /lib64 | /proc | /run | /sbin | /sys | /usr | /var) return 0 ;;
    /dev/* | /proc/* | /sys/* | /etc/* | /usr/bin* | /usr/lib* | /usr/include*) return 0 ;;
  esac
  for earlier in ${bound[@]+"${bound[@]}"}; do
    [[ $path/ != "$earlier"/* ]] || return 0
  done
  mkdir -p "$root$path"
  mount --bind "$path" "$root$path"
  bound+=("$path")
}

# A worktree's history lies outside of it, and names the version in what a build reports.
bind_history() {
  local line
  [ -f "$checkout/.git" ] || return 0
  read -r line <"$checkout/.git"
  bind "$(readlink -m "${line#gitdir: }/../../..")"
}

bind_argument() {
  local value=${1#--*=}
  case $value in
    /*)
      bind "$(dirname "$value")"
      bind "$(dirname "$(readlink -m "$value")")"
      ;;
    */* | *.*)
      [ ! -e "$folder/$value" ] || bind "$(dirname "$(readlink -m "$folder/$value")")"
      [ ! -d "$folder/$(dirname -- "$value")" ] || bind "$(readlink -m "$folder/$(dirname -- "$value")")"
      ;;
  esac
}

mount -t proc proc "$root/proc" 2>/dev/null || mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys" 2>/dev/null || true
cp -L /etc/resolv.conf /etc/hosts "$root/etc/" 2>/dev/null || true
# Whom the machine trusts, the root trusts: a package of the root may have written its own list. Another command may be
# reading the list, so it is not written again.
trusted=/etc/ssl/certs/ca-certificates.crt
cmp -s "$trusted" "$root$trusted" || cp -L "$trusted" "$root$trusted" 2>/dev/null || true

bind "$checkout"
bind "$(dirname "$checkout")/shared"
bind_history
bind "$folder"
for argument in "$@"; do
  bind_argument "$argument"
done

kept=()
for name in TERM CI NO_COLOR http_proxy https_proxy no_proxy ${!OMP_*} ${!STATEPORT_*} ${!CTEST_*} ${!CMAKE_*} \
  PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_CERT PIP_DEFAULT_TIMEOUT ${!KOKKOS_*} ${!ASAN_*} ${!UBSAN_*} ${!TSAN_*}; do
  [ -z "${!name+set}" ] || kept+=("$name=${!name}")
done
# shellcheck disable=SC2016 # expanded inside the root
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
  DEBIAN_FRONTEND=noninteractive ${kept[@]+"${kept[@]}"} \
  chroot "$root" /bin/bash -c 'cd "$1" && shift && exec "$@"' _ "$folder" "$@"
