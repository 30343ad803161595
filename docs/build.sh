#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the manual into build/docs/html: cmake/bootstrap.sh docs. A warning is an error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly out=build/docs

# doxygen_xml NAME SETTING…: what Breathe reads, in build/docs/xml/NAME.
doxygen_xml() {
  local name=$1
  shift
  {
    cat docs/Doxyfile
    printf '%s\n' "XML_OUTPUT = xml/$name" "$@"
  } | doxygen -q -
}

python3 -B docs/check.py
rm -rf "$out"  # Sphinx warns about a page only when it reads that page
mkdir -p "$out/xml"
doxygen_xml cpp "INPUT = core parts backends kernels tiers integrations" "FILE_PATTERNS = *.hpp"
doxygen_xml c "INPUT = c/include" "FILE_PATTERNS = *.h" "OPTIMIZE_OUTPUT_FOR_C = YES" "EXTENSION_MAPPING = h=C"
python3 -B -m sphinx -b html -d "$out/doctrees" --jobs auto --fail-on-warning --keep-going -q docs "$out/html"
printf 'docs: %s\n' "$PWD/$out/html/index.html"
