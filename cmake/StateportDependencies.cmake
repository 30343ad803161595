# SPDX-License-Identifier: Apache-2.0
# Every library that the project uses, found or fetched. An installed package is taken first; what is missing is
# downloaded from its upstream release, pinned by SHA-256, unless STATEPORT_FETCH_DEPENDENCIES is OFF. The pins are
# those of the Conan Center recipes (August 2026); Kokkos' is that of its release page.
include_guard(GLOBAL)
include(FetchContent)

# The Debian package that brings each dependency, for the message that says how to get it.
set(stateport_debian_package_fmt libfmt-dev)
set(stateport_debian_package_tsl-robin-map robin-map-dev)
set(stateport_debian_package_OpenSSL libssl-dev)
set(stateport_debian_package_xxHash libxxhash-dev)
set(stateport_debian_package_doctest doctest-dev)
set(stateport_debian_package_nlohmann_json nlohmann-json3-dev)
set(stateport_debian_package_CLI11 libcli11-dev)
set(stateport_debian_package_benchmark libbenchmark-dev)
set(stateport_debian_package_Kokkos "libkokkos-dev, which is 4.6 or newer from Debian 14 on")

# Stops: `name` was not found and may not, or cannot, be downloaded.
function(stateport_report_missing name why)
  message(FATAL_ERROR
    "stateport needs ${name} and did not find it (${why}).\n"
    "Do one of these:\n"
    "  * install it (Debian package: ${stateport_debian_package_${name}});\n"
    "  * name the folder where it is installed: -DCMAKE_PREFIX_PATH=/path/to/prefix;\n"
    "  * let CMake download it: -DSTATEPORT_FETCH_DEPENDENCIES=ON (OpenSSL is never downloaded);\n"
    "  * let the project provide everything: cmake/bootstrap.sh test.")
endfunction()

# Declares the pinned release of `name` and makes its targets. Warnings of other projects do not stop the build.
function(stateport_fetch name url sha256)
  cmake_parse_arguments(PARSE_ARGV 3 arg "HEADERS_ONLY" "" "OPTIONS")
  if(NOT STATEPORT_FETCH_DEPENDENCIES)
    stateport_report_missing(${name} "STATEPORT_FETCH_DEPENDENCIES is OFF")
  endif()
  message(STATUS "${name} is not installed: taking ${url}")
  foreach(option IN LISTS arg_OPTIONS)
    string(REGEX MATCH "^([^=]+)=(.*)$" match "${option}")
    set(${CMAKE_MATCH_1} "${CMAKE_MATCH_2}" CACHE INTERNAL "Set by stateport for the downloaded ${name}")
  endforeach()
  set(CMAKE_COMPILE_WARNING_AS_ERROR OFF)
  set(CMAKE_POSITION_INDEPENDENT_CODE ON)
  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
  set(headers_only_arguments)
  if(arg_HEADERS_ONLY)
    # A folder without CMakeLists.txt: the sources are unpacked and nothing of them is built or installed.
    set(headers_only_arguments SOURCE_SUBDIR stateport-headers-only)
  endif()
  FetchContent_Declare(${name} URL "${url}" URL_HASH SHA256=${sha256} DOWNLOAD_EXTRACT_TIMESTAMP ON SYSTEM
    ${headers_only_arguments})
  FetchContent_MakeAvailable(${name})
  string(TOLOWER ${name} lower)
  set(stateport_${name}_source "${${lower}_SOURCE_DIR}" PARENT_SCOPE)
endfunction()

# stateport_need(NAME target URL SHA256 …): find_package, else the pinned release.
macro(stateport_need name target)
  if(NOT TARGET ${target})
    find_package(${name} QUIET)
    if(${name}_FOUND)
      message(STATUS "Found ${name} ${${name}_VERSION}")
    else()
      stateport_fetch(${name} ${ARGN})
    endif()
  endif()
endmacro()

if(NOT TARGET OpenSSL::Crypto)
  find_package(OpenSSL QUIET COMPONENTS Crypto)
  if(NOT OpenSSL_FOUND)
    stateport_report_missing(OpenSSL "its libcrypto and headers")
  endif()
endif()

stateport_need(fmt fmt::fmt
  https://github.com/fmtlib/fmt/releases/download/11.2.0/fmt-11.2.0.zip
  203eb4e8aa0d746c62d8f903df58e0419e3751591bb53ff971096eaa0ebd4ec3
  OPTIONS FMT_INSTALL=ON)

stateport_need(tsl-robin-map tsl::robin_map
  https://github.com/Tessil/robin-map/archive/v1.4.0.tar.gz
  7930dbf9634acfc02686d87f615c0f4f33135948130b8922331c16d90a03250c
  HEADERS_ONLY)
if(NOT TARGET tsl::robin_map)
  add_library(tsl::robin_map INTERFACE IMPORTED GLOBAL)
  target_include_directories(tsl::robin_map INTERFACE "${stateport_tsl-robin-map_source}/include")
endif()

find_path(STATEPORT_XXHASH_INCLUDE xxhash.h)
if(NOT STATEPORT_XXHASH_INCLUDE)
  stateport_fetch(xxHash
    https://github.com/Cyan4973/xxHash/archive/v0.8.3.tar.gz
    aae608dfe8213dfd05d909a57718ef82f30722c392344583d3f39050c7f29a80
    HEADERS_ONLY)
  set(STATEPORT_XXHASH_INCLUDE "${stateport_xxHash_source}")
endif()

# libmooncake_store.so of a build of Mooncake with WITH_STORE_C_SHARED, and its header.
set(STATEPORT_MOONCAKE_FOUND OFF)
if(STATEPORT_MOONCAKE AND NOT STATEPORT_CORE_ONLY)
  find_path(STATEPORT_MOONCAKE_INCLUDE store_c.h PATH_SUFFIXES mooncake)
  find_library(STATEPORT_MOONCAKE_LIBRARY mooncake_store)
  mark_as_advanced(STATEPORT_MOONCAKE_INCLUDE STATEPORT_MOONCAKE_LIBRARY)
  if(STATEPORT_MOONCAKE_INCLUDE AND STATEPORT_MOONCAKE_LIBRARY)
    message(STATUS "Found Mooncake: ${STATEPORT_MOONCAKE_LIBRARY}")
    set(STATEPORT_MOONCAKE_FOUND ON)
    add_library(stateport::mooncake INTERFACE IMPORTED GLOBAL)
    set_target_properties(stateport::mooncake PROPERTIES INTERFACE_LINK_LIBRARIES "${STATEPORT_MOONCAKE_LIBRARY}")
    target_include_directories(stateport::mooncake SYSTEM INTERFACE "${STATEPORT_MOONCAKE_INCLUDE}")
  endif()
endif()

if(STATEPORT_VALKEY AND NOT STATEPORT_CORE_ONLY)
  include(StateportHiredis)
  if(STATEPORT_HIREDIS)
    message(STATUS "Found hiredis: ${STATEPORT_HIREDIS_LIBRARY} (TLS: ${STATEPORT_HIREDIS_TLS})")
  else()
    message(STATUS "hiredis is not installed: ValkeyStore is not built (Debian package: libhiredis-dev)")
  endif()
endif()

if(STATEPORT_BUILD_TESTS)
  stateport_need(doctest doctest::doctest
    https://github.com/doctest/doctest/archive/v2.4.12.tar.gz
    73381c7aa4dee704bd935609668cf41880ea7f19fa0504a200e13b74999c2d70
    OPTIONS DOCTEST_NO_INSTALL=ON DOCTEST_WITH_TESTS=OFF)
endif()

if(STATEPORT_BUILD_TESTS OR STATEPORT_BUILD_PERF)
  stateport_need(nlohmann_json nlohmann_json::nlohmann_json
    https://github.com/nlohmann/json/archive/v3.11.3.tar.gz
    0d8ef5af7f9794e3263480193c491549b2ba6cc74bb018906202ada498a79406
    OPTIONS JSON_BuildTests=OFF JSON_Install=OFF)
  stateport_need(CLI11 CLI11::CLI11
    https://github.com/CLIUtils/CLI11/archive/v2.5.0.tar.gz
    17e02b4cddc2fa348e5dbdbb582c59a3486fa2b2433e70a0c3bacb871334fd55
    OPTIONS CLI11_BUILD_TESTS=OFF CLI11_BUILD_EXAMPLES=OFF CLI11_BUILD_DOCS=OFF CLI11_INSTALL=OFF)
endif()

if(STATEPORT_BUILD_PERF)
  stateport_need(benchmark benchmark::benchmark
    https://github.com/google/benchmark/archive/v1.9.4.tar.gz
    b334658edd35efcf06a99d9be21e4e93e092bd5f95074c1673d5c8705d95c104
    OPTIONS BENCHMARK_ENABLE_TESTING=OFF BENCHMARK_ENABLE_INSTALL=OFF BENCHMARK_ENABLE_WERROR=OFF)
endif()
if(NOT STATEPORT_CORE_ONLY)
  include(StateportKokkos)
endif()
