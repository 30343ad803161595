#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check-release.sh: makes a release of this checkout's last commit with a key of its own and a wheel that is empty but for
# its bill of materials, and verifies it. A release that somebody changed, or that another key signed, is refused.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
clone=$folder/clone
release=$folder/release

# refuses TEXT COMMAND…: the command fails, and says TEXT.
refuses() {
  local text=$1
  shift
  if "$@" >"$folder/log" 2>&1; then
    printf 'check-release: was not refused (%s): %s\n' "$text" "$*" >&2
    exit 1
  fi
  grep -qF "$text" "$folder/log" || {
    cat "$folder/log" >&2
    printf 'check-release: did not say "%s": %s\n' "$text" "$*" >&2
    exit 1
  }
}

for name in release other; do
  openssl genpkey -algorithm ed25519 -out "$folder/$name.pem"
  openssl pkey -in "$folder/$name.pem" -pubout -out "$folder/$name.pub"
done
git clone -q "$here/.." "$clone"
# What is checked out is tested, also before it is committed.
cp "$here/release.sh" "$clone/cmake/release.sh"
version=$(sed -nE 's/^project\(stateport VERSION ([0-9.]+) .*/\1/p' "$clone/CMakeLists.txt")
sed -i "0,/^## .*/s//## $version (2026-01-31)/" "$clone/CHANGELOG.md"
git -C "$clone" add -A
git -C "$clone" -c user.name=check -c user.email=check@localhost commit -qm Release --allow-empty
wheel=$folder/stateport-$version-py3-none-any.whl
printf '{"bomFormat": "CycloneDX"}\n' >"$folder/stateport.cdx.json"
(cd "$folder" && python3 -m zipfile -c "$wheel" stateport.cdx.json)

make=(bash "$clone/cmake/release.sh" --key "$folder/release.pem")
verify=(bash "$clone/cmake/release.sh" --verify "$release" --public-key "$folder/release.pub")
"${make[@]}" --out "$release" "$wheel"
"${make[@]}" --out "$folder/again" "$wheel"
cmp "$release/SHA256SUMS" "$folder/again/SHA256SUMS"
"${verify[@]}"
grep -q CycloneDX "$release/stateport-$version-py3-none-any.cdx.json"
grep -q . "$release/NOTES.md"
tar -xzOf "$release/stateport-$version.tar.gz" "stateport-$version/CMakeLists.txt" | cmp - "$clone/CMakeLists.txt"

refuses "not empty" "${make[@]}" --out "$release" "$wheel"
refuses "no private key" bash "$clone/cmake/release.sh" --out "$folder/none" --key "$folder/release.pub"
cp "$wheel" "$folder/stateport-0.0.1-py3-none-any.whl"
refuses "no wheel of stateport $version" "${make[@]}" --out "$folder/none" "$folder/stateport-0.0.1-py3-none-any.whl"
refuses "was not signed by" "${verify[@]:0:4}" --public-key "$folder/other.pub"
touch "$release/extra"
refuses "does not list extra" "${verify[@]}"
rm "$release/extra"
printf 'x' >>"$release/NOTES.md"
refuses "differs from SHA256SUMS" "${verify[@]}"
(cd "$release" && rm SHA256SUMS && sha256sum -- *.gz *.md *.whl *.json >SHA256SUMS)
refuses "was not signed by" "${verify[@]}"
touch "$clone/new"
refuses "files differ from the commit" "${make[@]}" --out "$folder/new"
rm "$clone/new"
sed -i "0,/^## .*/s//## $version (unreleased)/" "$clone/CHANGELOG.md"
refuses "begin with: ## $version (DATE)" "${make[@]}" --out "$folder/new"
printf 'check-release: a release is made twice alike, verified, and refused after each change\n'
