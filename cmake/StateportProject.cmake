# SPDX-License-Identifier: Apache-2.0
# What every target of the project shares: output folders, the language level, warnings, and how a module
# library and a test program are declared.
include_guard(GLOBAL)
include(GNUInstallDirs)

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
  set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
  endif()
endif()

add_library(stateport_options INTERFACE)
target_compile_features(stateport_options INTERFACE cxx_std_20)
# Options are aggregates with defaults, filled by designated initialisers: leaving members out is meant.
target_compile_options(stateport_options INTERFACE
  "$<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang,AppleClang>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wsign-conversion;-Wno-missing-field-initializers>"
  # gcc warns of members whose type lies in an anonymous namespace, unless they stand in the file that it compiles. A
  # batch includes its sources, so there it warns without cause.
  "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>")

set(STATEPORT_SANITIZE "" CACHE STRING "Sanitizers for every target, for example address,undefined")
if(STATEPORT_SANITIZE)
  add_compile_options(-fsanitize=${STATEPORT_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${STATEPORT_SANITIZE})
endif()
if(STATEPORT_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL "Debug")
  target_compile_definitions(stateport_options INTERFACE STATEPORT_ENABLE_ASSERT)
endif()

# Compiles the sources of this folder's targets eight at a time, in half the time; -DCMAKE_UNITY_BUILD=OFF compiles each
# alone. The library and the benchmarks are compiled so only where -DCMAKE_UNITY_BUILD=ON says so, or, in a new build
# folder, the environment: STATEPORT_UNITY_BUILD=ON.
if(DEFINED ENV{STATEPORT_UNITY_BUILD} AND NOT DEFINED CMAKE_UNITY_BUILD)
  set(CMAKE_UNITY_BUILD "$ENV{STATEPORT_UNITY_BUILD}" CACHE BOOL "Compile eight sources at a time")
endif()
macro(stateport_compile_in_batches)
  if(NOT DEFINED CMAKE_UNITY_BUILD)
    set(CMAKE_UNITY_BUILD ON)
  endif()
endmacro()

# Shared libraries export versioned symbols of stateport alone. Not where several of ours share a static Kokkos: then each
# of them has a part of it, and they find each other's only while all is visible.
function(stateport_restrict_exports target)
  get_target_property(type ${target} TYPE)
  if(NOT type STREQUAL "SHARED_LIBRARY" OR NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
    return()
  endif()
  if(BUILD_SHARED_LIBS AND TARGET Kokkos::kokkoscore)
    get_target_property(kokkos_type Kokkos::kokkoscore TYPE)
    if(NOT kokkos_type STREQUAL "SHARED_LIBRARY")
      message(STATUS "${target}: all symbols stay visible, because Kokkos is a static library")
      return()
    endif()
  endif()
  set(map "${stateport_BINARY_DIR}/stateport.map")  # also for projects within this one
  configure_file("${stateport_SOURCE_DIR}/cmake/stateport.map.in" "${map}" @ONLY)
  target_link_options(${target} PRIVATE "LINKER:--version-script=${map}")
  set_target_properties(${target} PROPERTIES LINK_DEPENDS "${map}" VISIBILITY_INLINES_HIDDEN ON)
endfunction()

# stateport_write_umbrella(core include/stateport/core/a.hpp…): writes include/stateport/core.hpp, which includes them
# all, in the folder of the build.
function(stateport_write_umbrella name)
  set(headers ${ARGN})
  list(TRANSFORM headers REPLACE "^include/(.*)$" "#include <\\1>" OUTPUT_VARIABLE includes)
  list(JOIN includes "\n" includes)
  file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/include/stateport/${name}.hpp" @ONLY CONTENT
"// SPDX-License-Identifier: Apache-2.0
#pragma once

// All public headers of stateport::${name}.
@includes@
")
endfunction()

# stateport_add_module(core [UMBRELLA] HEADERS a.hpp… SOURCES b.cpp…): the library stateport_core, alias
# stateport::core, whose public headers are checked to be self-contained. FOLDER c: they lie in include/stateport/c, not
# in …/<name>. UMBRELLA: <stateport/core.hpp> includes them all.
function(stateport_add_module name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "UMBRELLA" "FOLDER" "HEADERS;SOURCES")
  if(NOT arg_FOLDER)
    set(arg_FOLDER ${name})
  endif()
  string(REPLACE "_" "-" output_name ${name})
  set(target stateport_${name})
  add_library(${target} ${arg_SOURCES})
  add_library(stateport::${name} ALIAS ${target})
  list(TRANSFORM arg_HEADERS PREPEND "include/stateport/${arg_FOLDER}/")
  set(header_folders include)
  if(arg_UMBRELLA)
    stateport_write_umbrella(${name} ${arg_HEADERS})
    list(APPEND header_folders "${CMAKE_CURRENT_BINARY_DIR}/include")
    list(APPEND arg_HEADERS "${CMAKE_CURRENT_BINARY_DIR}/include/stateport/${name}.hpp")
  endif()
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${header_folders} FILES ${arg_HEADERS})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:stateport_options>)
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${name} OUTPUT_NAME stateport-${output_name} VERIFY_INTERFACE_HEADER_SETS ON
    POSITION_INDEPENDENT_CODE ON
    INSTALL_RPATH "$ORIGIN;${CMAKE_INSTALL_RPATH}"  # an installed library finds those that it needs beside it
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})  # before 1.0 a minor version may break its users
  stateport_restrict_exports(${target})
  install(TARGETS ${target} EXPORT stateport-targets FILE_SET HEADERS)
endfunction()

# stateport_add_tests(test-core LIBRARIES … SOURCES a_test.cpp…): one doctest program; CTest gets one test per source
# file, found by file name, so that listing tests starts no program (and no device).
function(stateport_add_tests program)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBRARIES")
  add_executable(${program} ${arg_SOURCES})
  target_link_libraries(${program} PRIVATE stateport_options stateport_test_support ${arg_LIBRARIES})
  stateport_register_tests(${program} SOURCES ${arg_SOURCES})
endfunction()

# stateport_register_tests(test-core SOURCES a_test.cpp… PROPERTIES …): tells CTest of a program that has these tests.
function(stateport_register_tests program)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;PROPERTIES")
  string(REPLACE "test-" "" module ${program})
  foreach(source IN LISTS arg_SOURCES)
    get_filename_component(stem ${source} NAME_WE)
    if(stem MATCHES "main$")
      continue()
    endif()
    string(REGEX REPLACE "_test$" "" test_name "${module}.${stem}")
    add_test(NAME ${test_name} COMMAND ${program} "--source-file=*/${stem}.cpp")
    set_tests_properties(${test_name} PROPERTIES SKIP_RETURN_CODE 77
      FAIL_REGULAR_EXPRESSION "test cases: +0 \\|" LABELS ${module} ${arg_PROPERTIES})
  endforeach()
endfunction()
