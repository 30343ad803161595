# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# llama.cpp of another version: that in the source archive of llama-cpp-python. Sourced by run.sh.
: "${cache:?}"

# provide_sdist FOLDER VERSION: builds libllama and ggml of the archive for the CPU, and installs them in
# FOLDER/installed, unless this compiler did already.
provide_sdist() {
  local folder=$1 package=llama-cpp-python==$2 recipe free
  recipe="$package $("${CXX:-c++}" --version | head -n 1)"
  complete "$folder" "$recipe" && return 0
  discard "$folder"
  mkdir -p "$folder"
  free=$(df --output=avail -BG "$folder" | tail -n 1 | tr -dc 0-9)
  [ "$free" -ge 2 ] || impossible "$folder has less than 2 GB free"
  logged sdist-archive python3 -m pip download --no-cache-dir --disable-pip-version-check --no-deps \
    --no-binary llama-cpp-python --dest "$folder" "$package" ||
    impossible "the source archive of $package cannot be had from the package index"
  tar --extract --file "$folder"/llama_cpp_python-*.tar.gz --directory "$folder" --strip-components=2 \
    "llama_cpp_python-$2/vendor/llama.cpp"
  say "building llama.cpp of $package: about 4 minutes of processor time"
  logged sdist-configured cmake -S "$folder/llama.cpp" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_INSTALL_PREFIX="$folder/installed" -DCMAKE_INSTALL_LIBDIR=lib "-DCMAKE_INSTALL_RPATH=\$ORIGIN" \
    -DBUILD_SHARED_LIBS=ON -DGGML_CCACHE=OFF -DLLAMA_BUILD_{COMMON,TESTS,TOOLS,EXAMPLES,SERVER,APP}=OFF ||
    fail "llama.cpp of $package cannot be configured" "read the lines above"
  logged sdist-built nice cmake --build "$folder/build" --target install --parallel 2 ||
    fail "llama.cpp of $package does not build" "read the lines above"
  rm -rf "$folder/llama.cpp" "$folder/build" "$folder"/*.tar.gz
  printf '%s\n' "$recipe" >"$folder/.stateport-complete"
}
