# SPDX-License-Identifier: Apache-2.0
# Every library that the project uses, found or fetched. An installed package is taken first; what is missing is
# downloaded from its upstream release, pinned by SHA-256 in dependencies.json, unless STATEPORT_FETCH_DEPENDENCIES is
# OFF. With STATEPORT_PINNED no installed package is taken but OpenSSL. FETCHCONTENT_SOURCE_DIR_<NAME> names a folder of
# sources instead of a download. The pins are those of the Conan Center recipes (August 2026); those of Kokkos and hiredis
# are of their release pages.
include_guard(GLOBAL)
include(FetchContent)
include(StateportSbom)

# Stops: `name` was not found and may not, or cannot, be downloaded.
function(stateport_report_missing name why)
  stateport_dependency(debian ${name} debian)
  message(FATAL_ERROR
    "stateport needs ${name} and did not find it (${why}).\n"
    "Do one of these:\n"
    "  * install it (Debian package: ${debian});\n"
    "  * name the folder where it is installed: -DCMAKE_PREFIX_PATH=/path/to/prefix;\n"
    "  * let CMake download it: -DSTATEPORT_FETCH_DEPENDENCIES=ON (OpenSSL is never downloaded);\n"
    "  * let the project provide everything: cmake/bootstrap.sh test.")
endfunction()

# stateport_find(NAME): find_package, or not found where pinned releases are wanted.
macro(stateport_find name)
  set(${name}_FOUND OFF)
  if(NOT STATEPORT_PINNED)
    find_package(${name} ${ARGN} QUIET)
  endif()
endmacro()

# Makes the targets of the pinned release of `name`. Warnings of other projects do not stop the build.
function(stateport_fetch name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "HEADERS_ONLY" "" "OPTIONS")
  if(NOT STATEPORT_FETCH_DEPENDENCIES)
    stateport_report_missing(${name} "STATEPORT_FETCH_DEPENDENCIES is OFF")
  endif()
  stateport_dependency(url ${name} url)
  stateport_dependency(sha256 ${name} sha256)
  message(STATUS "${name} is not installed: taking ${url}")
  foreach(option IN LISTS arg_OPTIONS)
    string(REGEX MATCH "^([^=]+)=(.*)$" match "${option}")
    set(${CMAKE_MATCH_1} "${CMAKE_MATCH_2}" CACHE INTERNAL "Set by stateport for the downloaded ${name}")
  endforeach()
  set(CMAKE_COMPILE_WARNING_AS_ERROR OFF)
  set(CMAKE_POSITION_INDEPENDENT_CODE ON)
  if(STATEPORT_PINNED)
    set(BUILD_SHARED_LIBS OFF)
  endif()
  set(CMAKE_UNITY_BUILD OFF)
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
  stateport_add_licenses(${name} "${${lower}_SOURCE_DIR}")
  string(TOUPPER ${name} upper)
  if(FETCHCONTENT_SOURCE_DIR_${upper})
    stateport_sbom_add_component(${name} "" "" "")
  else()
    stateport_sbom_add_pinned(${name})
  endif()
endfunction()

# stateport_need(NAME target …): find_package, else the pinned release.
macro(stateport_need name target)
  if(NOT TARGET ${target})
    stateport_find(${name})
    if(${name}_FOUND)
      message(STATUS "Found ${name} ${${name}_VERSION}")
      stateport_sbom_add(${name} "${${name}_VERSION}" ${target})
    else()
      stateport_fetch(${name} ${ARGN})
    endif()
  endif()
endmacro()

if(NOT TARGET OpenSSL::Crypto)
  set(OPENSSL_USE_STATIC_LIBS ${STATEPORT_PINNED})
  find_package(OpenSSL QUIET COMPONENTS Crypto)
  if(NOT OpenSSL_FOUND)
    stateport_report_missing(OpenSSL "its libcrypto and headers")
  endif()
  stateport_sbom_add(OpenSSL "${OPENSSL_VERSION}" OpenSSL::Crypto)
endif()

stateport_need(fmt fmt::fmt
  OPTIONS FMT_INSTALL=ON)

stateport_need(tsl-robin-map tsl::robin_map
  HEADERS_ONLY)
if(NOT TARGET tsl::robin_map)
  add_library(tsl::robin_map INTERFACE IMPORTED GLOBAL)
  target_include_directories(tsl::robin_map INTERFACE "${stateport_tsl-robin-map_source}/include")
endif()

stateport_need(nlohmann_json nlohmann_json::nlohmann_json
  OPTIONS JSON_BuildTests=OFF JSON_Install=OFF)

if(NOT STATEPORT_PINNED)
  find_path(STATEPORT_XXHASH_INCLUDE xxhash.h)
endif()
if(NOT STATEPORT_XXHASH_INCLUDE)
  stateport_fetch(xxHash HEADERS_ONLY)
  set(STATEPORT_XXHASH_INCLUDE "${stateport_xxHash_source}")
endif()
stateport_version_in_header(stateport_xxhash_version "${STATEPORT_XXHASH_INCLUDE}/xxhash.h" XXH_VERSION_
  MAJOR MINOR RELEASE)
stateport_sbom_add_file(xxHash "${stateport_xxhash_version}" "${STATEPORT_XXHASH_INCLUDE}/xxhash.h")

# libmooncake_store.so of a build of Mooncake with WITH_STORE_C_SHARED, and its header.
set(STATEPORT_MOONCAKE_FOUND OFF)
if(STATEPORT_MOONCAKE AND NOT STATEPORT_CORE_ONLY)
  find_path(STATEPORT_MOONCAKE_INCLUDE store_c.h PATH_SUFFIXES mooncake)
  find_library(STATEPORT_MOONCAKE_LIBRARY mooncake_store)
  mark_as_advanced(STATEPORT_MOONCAKE_INCLUDE STATEPORT_MOONCAKE_LIBRARY)
  if(STATEPORT_MOONCAKE_INCLUDE AND STATEPORT_MOONCAKE_LIBRARY)
    message(STATUS "Found Mooncake: ${STATEPORT_MOONCAKE_LIBRARY}")
    stateport_sbom_add_file(Mooncake "" "${STATEPORT_MOONCAKE_LIBRARY}")
    set(STATEPORT_MOONCAKE_FOUND ON)
    add_library(stateport::mooncake INTERFACE IMPORTED GLOBAL)
    set_target_properties(stateport::mooncake PROPERTIES INTERFACE_LINK_LIBRARIES "${STATEPORT_MOONCAKE_LIBRARY}")
    target_include_directories(stateport::mooncake SYSTEM INTERFACE "${STATEPORT_MOONCAKE_INCLUDE}")
  endif()
endif()

if(STATEPORT_VALKEY AND NOT STATEPORT_CORE_ONLY)
  include(StateportHiredis)
endif()

if(STATEPORT_BUILD_TESTS)
  stateport_need(doctest doctest::doctest
    OPTIONS DOCTEST_NO_INSTALL=ON DOCTEST_WITH_TESTS=OFF)
endif()

if(STATEPORT_BUILD_TESTS OR STATEPORT_BUILD_APPS OR STATEPORT_BUILD_PERF)
  stateport_need(CLI11 CLI11::CLI11
    OPTIONS CLI11_BUILD_TESTS=OFF CLI11_BUILD_EXAMPLES=OFF CLI11_BUILD_DOCS=OFF CLI11_INSTALL=OFF)
endif()

if(STATEPORT_BUILD_PERF)
  stateport_need(benchmark benchmark::benchmark
    OPTIONS BENCHMARK_ENABLE_TESTING=OFF BENCHMARK_ENABLE_INSTALL=OFF BENCHMARK_ENABLE_WERROR=OFF)
endif()

if(STATEPORT_BUILD_APPS)
  find_package(ZLIB QUIET)
  if(ZLIB_FOUND)
    stateport_version_in_header(stateport_zlib_version "${ZLIB_INCLUDE_DIRS}/zlib.h" ZLIB_VER_ MAJOR MINOR REVISION)
    message(STATUS "Found ZLIB ${stateport_zlib_version}")
    stateport_sbom_add(ZLIB "${stateport_zlib_version}" ZLIB::ZLIB)
  else()
    message(STATUS "zlib is not installed: stateport-replay reads no traces in gzip (Debian package: zlib1g-dev)")
  endif()
endif()
if(NOT STATEPORT_CORE_ONLY)
  include(StateportKokkos)
endif()
