#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# release.sh --out FOLDER [--key KEY] [WHEEL…]: makes the files of a release from the commit that is checked out, and from
# wheels that python/wheels/build.sh made of it.
# release.sh --verify FOLDER [--public-key KEY]: whether the files of a release are those that its owner signed.
#   --out         a folder that is not there, or is empty
#   --key         private key (PEM, Ed25519) that signs SHA256SUMS; without it the release has no signature. To make one:
#                 openssl genpkey -algorithm ed25519 -out release.pem
#   --public-key  the owner's public key; without it only the sums are compared. To make one:
#                 openssl pkey -in release.pem -pubout -out release.pub
# A release has stateport-VERSION.tar.gz (the commit; the same bytes each time), NOTES.md (the section of CHANGELOG.md), the
# wheels, WHEEL.cdx.json (the bill of materials of each), SHA256SUMS, SHA256SUMS.sig.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=cmake/provision/common.sh
. "$here/provision/common.sh"
out='' key='' verify='' public_key='' wheels=()

usage() { sed -n '3,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

# read_version: of CMakeLists.txt, which CHANGELOG.md has as its newest, with a date.
read_version() {
  version=$(sed -nE 's/^project\(stateport VERSION ([0-9.]+) .*/\1/p' "$checkout/CMakeLists.txt")
  newest=$(grep -m 1 '^## ' "$checkout/CHANGELOG.md")
  [[ $newest =~ ^"## $version ("[0-9]{4}-[0-9]{2}-[0-9]{2}")"$ ]] ||
    fail "CHANGELOG.md begins with \"$newest\", and CMakeLists.txt has version $version" "begin with: ## $version (DATE)"
}

require_clean_checkout() {
  local changed
  changed=$(git -C "$checkout" status --porcelain) || fail "$checkout is no checkout of git"
  [ -z "$changed" ] || fail "files differ from the commit: $(head -n 1 <<<"$changed")" "commit them, or remove them"
}

# add_wheel FILE: with its bill of materials.
add_wheel() {
  local name=${1##*/} bill
  [ -f "$1" ] || fail "no wheel: $1"
  [[ $name == stateport*-"$version"-*.whl ]] || fail "$name is no wheel of stateport $version"
  [ ! -e "$out/$name" ] || fail "$name was given twice"
  bill=$(python3 -m zipfile -l "$1" | sed -nE 's/^([^ ]*stateport\.cdx\.json) .*/\1/p' | head -n 1)
  [ -n "$bill" ] || fail "$name has no bill of materials (stateport.cdx.json)"
  cp "$1" "$out/$name"
  python3 -c 'import sys, zipfile; sys.stdout.buffer.write(zipfile.ZipFile(sys.argv[1]).read(sys.argv[2]))' "$1" "$bill" \
    >"$out/${name%.whl}.cdx.json"
}

make_release() {
  local wheel
  read_version
  require_clean_checkout
  [ -z "$key" ] || openssl pkey -in "$key" -noout 2>/dev/null || fail "no private key: $key"
  mkdir -p "$out"
  [ -z "$(ls -A "$out")" ] || fail "$out is not empty"
  out=$(cd "$out" && pwd -P)
  git -C "$checkout" archive --prefix="stateport-$version/" HEAD | gzip -n -9 >"$out/stateport-$version.tar.gz"
  sed -n "/^## $version /,/^## /{/^## /d;p}" "$checkout/CHANGELOG.md" >"$out/NOTES.md"
  for wheel in ${wheels[@]+"${wheels[@]}"}; do add_wheel "$wheel"; done
  (cd "$out" && sha256sum -- * >SHA256SUMS)
  if [ -n "$key" ]; then
    openssl pkeyutl -sign -inkey "$key" -rawin -in "$out/SHA256SUMS" -out "$out/SHA256SUMS.sig"
  else
    say "SHA256SUMS is not signed: no --key"
  fi
  say "stateport $version, $(wc -l <"$out/SHA256SUMS") files: $out"
}

# Every file is in SHA256SUMS, and has the sum that stands there.
verify_release() {
  local file
  cd "$verify" || fail "no folder: $verify"
  [ -f SHA256SUMS ] || fail "$verify has no SHA256SUMS"
  if [ -n "$public_key" ]; then
    openssl pkeyutl -verify -pubin -inkey "$public_key" -rawin -in SHA256SUMS -sigfile SHA256SUMS.sig >/dev/null 2>&1 ||
      fail "SHA256SUMS was not signed by the owner of $public_key"
  fi
  sha256sum --check --strict --quiet SHA256SUMS || fail "a file differs from SHA256SUMS"
  for file in *; do
    case $file in
      SHA256SUMS | SHA256SUMS.sig) ;;
      *) grep -qF "  $file" SHA256SUMS || fail "SHA256SUMS does not list $file" ;;
    esac
  done
  [ -n "$public_key" ] || say "the signature was not checked: no --public-key"
  say "all files are as they were released"
}

while [ $# -gt 0 ]; do
  case $1 in
    --out | --key | --verify | --public-key) [ $# -gt 1 ] || fail "$1 needs a value" ;;&
    --out) out=$2 && shift 2 ;;
    --key) key=$2 && shift 2 ;;
    --verify) verify=$2 && shift 2 ;;
    --public-key) public_key=$(realpath "$2") && shift 2 ;;
    -h | --help) usage && exit ;;
    -*) fail "no option: $1" "release.sh --help" ;;
    *) wheels+=("$1") && shift ;;
  esac
done
if [ -n "$verify" ]; then
  verify_release
elif [ -n "$out" ]; then
  make_release
else
  fail "nothing to do" "release.sh --help"
fi
