# SPDX-License-Identifier: Apache-2.0
# What a wheel holds beside the Python package: one shared library with the C interface, its headers, its CMake package,
# and the licences of what is linked into it. Included instead of StateportInstall.cmake; pyproject.toml installs the
# component `python`.
include_guard(GLOBAL)
include(CMakePackageConfigHelpers)

set(STATEPORT_LICENSE_FILES "" CACHE STRING
    "Licences of what a wheel bundles beside pinned releases, as name=file: of the compiler's runtime, for example")

set(stateport_wheel_module c)
set(stateport_wheel_modules c_core c)
if(STATEPORT_CORE_ONLY)
  set(stateport_wheel_module c_core)
  set(stateport_wheel_modules c_core)
endif()
set(stateport_wheel_target stateport_${stateport_wheel_module}_loadable)
string(REPLACE "_" "-" stateport_wheel_name stateport-${stateport_wheel_module})

set(stateport_wheel_headers "")
foreach(module IN LISTS stateport_wheel_modules)
  get_target_property(headers stateport_${module} HEADER_SET)
  list(APPEND stateport_wheel_headers ${headers})
endforeach()
target_sources(${stateport_wheel_target} PUBLIC
  FILE_SET HEADERS BASE_DIRS "${stateport_SOURCE_DIR}/c/include" FILES ${stateport_wheel_headers})
# A wheel has no links between files: no version in the library's name.
set_target_properties(${stateport_wheel_target} PROPERTIES
  OUTPUT_NAME ${stateport_wheel_name} EXPORT_NAME ${stateport_wheel_module} INSTALL_RPATH "$ORIGIN")
if(STATEPORT_PINNED)
  # Older distributions have an older libstdc++. Nothing of it crosses the C interface. Sections that nothing calls are
  # removed: std::random_device would need the newest glibc.
  target_link_options(${stateport_wheel_target} PRIVATE -static-libstdc++ "LINKER:--gc-sections")
endif()
if(STATEPORT_BACKEND STREQUAL "CUDA" AND NOT STATEPORT_CORE_ONLY)
  # Its functions are found before those of libcuda, which is then not needed.
  find_package(CUDAToolkit REQUIRED)
  target_sources(${stateport_wheel_target} PRIVATE "${stateport_SOURCE_DIR}/backends/src/cuda/driver_calls.cpp")
  target_include_directories(${stateport_wheel_target} PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_options(${stateport_wheel_target} PRIVATE "LINKER:--as-needed")
endif()
install(TARGETS ${stateport_wheel_target} EXPORT stateport-wheel COMPONENT python FILE_SET HEADERS COMPONENT python)
install(FILES c/python/stateport_c.py DESTINATION . RENAME _c.py COMPONENT python)

# The CMake package has this one target.
set(stateport_all_modules ${stateport_wheel_module})
set(stateport_library_type SHARED)
set(stateport_cmake_folder "${CMAKE_INSTALL_LIBDIR}/cmake/stateport")
configure_package_config_file(cmake/stateportConfig.cmake.in "${PROJECT_BINARY_DIR}/stateportConfig.cmake"
  INSTALL_DESTINATION "${stateport_cmake_folder}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/stateportConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/stateportConfig.cmake" "${PROJECT_BINARY_DIR}/stateportConfigVersion.cmake"
  DESTINATION "${stateport_cmake_folder}" COMPONENT python)
install(EXPORT stateport-wheel NAMESPACE stateport:: FILE stateport-targets.cmake
  DESTINATION "${stateport_cmake_folder}" COMPONENT python)

get_property(stateport_licenses GLOBAL PROPERTY stateport_licenses)
foreach(license IN LISTS stateport_licenses STATEPORT_LICENSE_FILES)
  string(REGEX MATCH "^([^=]+)=(/.+)$" parts "${license}")
  if(NOT EXISTS "${CMAKE_MATCH_2}")
    message(FATAL_ERROR "STATEPORT_LICENSE_FILES: '${license}' is not name=file, or there is no such file")
  endif()
  install(FILES "${CMAKE_MATCH_2}" DESTINATION "${SKBUILD_METADATA_DIR}/licenses/${CMAKE_MATCH_1}" COMPONENT python)
endforeach()
