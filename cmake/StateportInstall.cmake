# SPDX-License-Identifier: Apache-2.0
# The umbrella target, and what makes an installed stateport usable: the CMake package and the pkg-config file.
include_guard(GLOBAL)
include(CMakePackageConfigHelpers)

set(stateport_modules core parts)
if(NOT STATEPORT_CORE_ONLY)
  list(APPEND stateport_modules backends kernels tiers)
endif()

add_library(stateport INTERFACE)
add_library(stateport::stateport ALIAS stateport)
set_target_properties(stateport PROPERTIES EXPORT_NAME stateport)
list(TRANSFORM stateport_modules PREPEND "stateport::" OUTPUT_VARIABLE stateport_module_targets)
target_link_libraries(stateport INTERFACE ${stateport_module_targets})
install(TARGETS stateport EXPORT stateport-targets)

get_target_property(stateport_library_type stateport_core TYPE)
string(REPLACE "_LIBRARY" "" stateport_library_type ${stateport_library_type})

# What Kokkos is at link time, for users of static libraries: plain files where Kokkos is a shared library, so that they
# need neither its package nor OpenMP support of their own compiler; else Kokkos' package is searched again.
set(stateport_kokkos_files "")
if(NOT STATEPORT_CORE_ONLY AND STATEPORT_BACKEND STREQUAL "OPENMP" AND TARGET Kokkos::kokkoscore)
  get_target_property(stateport_kokkos_type Kokkos::kokkoscore TYPE)
  if(stateport_kokkos_type STREQUAL "SHARED_LIBRARY" AND NOT STATEPORT_BUNDLES_KOKKOS)
    get_target_property(stateport_kokkos_configurations Kokkos::kokkoscore IMPORTED_CONFIGURATIONS)
    list(GET stateport_kokkos_configurations 0 stateport_kokkos_configuration)
    get_target_property(stateport_kokkos_file Kokkos::kokkoscore IMPORTED_LOCATION_${stateport_kokkos_configuration})
    set(stateport_kokkos_files ${stateport_kokkos_file} ${OpenMP_CXX_LIBRARIES})
  endif()
endif()

# Told by the package as stateport_MODULES. C++ users of the umbrella target do not link the C interface.
set(stateport_all_modules ${stateport_modules} c_core)
if(NOT STATEPORT_CORE_ONLY)
  list(APPEND stateport_all_modules c)
endif()

# Shared libraries know where theirs are: the package then names no folder of this machine.
set(stateport_static_kokkos_files "")
if(stateport_library_type STREQUAL "STATIC")
  set(stateport_static_kokkos_files ${stateport_kokkos_files})
endif()

set(stateport_cmake_folder "${CMAKE_INSTALL_LIBDIR}/cmake/stateport")
configure_package_config_file(cmake/stateportConfig.cmake.in "${PROJECT_BINARY_DIR}/stateportConfig.cmake"
  INSTALL_DESTINATION "${stateport_cmake_folder}"
  PATH_VARS CMAKE_INSTALL_INCLUDEDIR)
# 0.x: a new minor version may break its users.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/stateportConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/stateportConfig.cmake" "${PROJECT_BINARY_DIR}/stateportConfigVersion.cmake"
  DESTINATION "${stateport_cmake_folder}")
install(EXPORT stateport-targets NAMESPACE stateport:: DESTINATION "${stateport_cmake_folder}")

# pkg-config: users first, the used last, which is the order that static linking wants. Those for C also name what C++
# code needs, so that a C compiler can link.
set(stateport_pc_cxx "-lstdc++")
if("c++" IN_LIST CMAKE_CXX_IMPLICIT_LINK_LIBRARIES)
  set(stateport_pc_cxx "-lc++")
endif()
string(APPEND stateport_pc_cxx " -lm")
file(RELATIVE_PATH stateport_pc_prefix "/p/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/p")

# stateport_write_pc(stateport-c ", for C" MODULES core… NEEDS -lfmt…)
function(stateport_write_pc stateport_pc_name stateport_pc_language)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "MODULES;NEEDS")
  list(REVERSE arg_MODULES)
  list(TRANSFORM arg_MODULES REPLACE "_" "-")
  list(TRANSFORM arg_MODULES PREPEND "-lstateport-")
  list(JOIN arg_MODULES " " stateport_pc_libraries)
  list(JOIN arg_NEEDS " " stateport_pc_static)
  if(stateport_library_type STREQUAL "STATIC")
    # Without shared libraries to remember their own needs, plain `pkg-config --libs` must say them all.
    string(APPEND stateport_pc_libraries " ${stateport_pc_static}")
    set(stateport_pc_static "")
  endif()
  configure_file(cmake/stateport.pc.in "${PROJECT_BINARY_DIR}/${stateport_pc_name}.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/${stateport_pc_name}.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endfunction()

set(stateport_pc_needs -lfmt -lcrypto ${stateport_kokkos_files})
if(STATEPORT_MOONCAKE_FOUND)
  list(PREPEND stateport_pc_needs -lmooncake_store)
endif()
if(STATEPORT_HIREDIS_TLS)
  list(PREPEND stateport_pc_needs -lhiredis_ssl -lhiredis -lssl)
elseif(STATEPORT_HIREDIS)
  list(PREPEND stateport_pc_needs -lhiredis)
endif()
stateport_write_pc(stateport "" MODULES ${stateport_modules} NEEDS ${stateport_pc_needs})
stateport_write_pc(stateport-c-core ", for C, without a device" MODULES core parts c_core
  NEEDS -lfmt -lcrypto ${stateport_pc_cxx})
if(NOT STATEPORT_CORE_ONLY)
  stateport_write_pc(stateport-c ", for C" MODULES ${stateport_modules} c_core c
    NEEDS ${stateport_pc_needs} ${stateport_pc_cxx})
endif()
