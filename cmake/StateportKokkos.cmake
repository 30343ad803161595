# SPDX-License-Identifier: Apache-2.0
# Kokkos with the build's one device backend, and stateport_use_kokkos(), the only place that knows how sources that
# include Kokkos are compiled: as plain C++, as a CMake language (CUDA, HIP), or through Kokkos' compile launcher.
include_guard(GLOBAL)

set(stateport_backends CUDA HIP OPENMP)
if(NOT STATEPORT_BACKEND IN_LIST stateport_backends)
  message(FATAL_ERROR "STATEPORT_BACKEND is ${STATEPORT_BACKEND}; it must be CUDA, HIP or OPENMP")
endif()

# Stops unless the vendor's toolkit is there: without this, CMake's own message speaks of a compiler test only.
function(stateport_require_toolkit)
  if(STATEPORT_BACKEND STREQUAL "CUDA")
    find_package(CUDAToolkit 12.2 QUIET)
    if(NOT CUDAToolkit_FOUND)
      message(FATAL_ERROR
        "STATEPORT_BACKEND is CUDA, and no CUDA Toolkit 12.2 or newer was found.\n"
        "  * No NVIDIA GPU here? Build for the CPU: cmake --preset openmp (or -DSTATEPORT_BACKEND=OPENMP).\n"
        "  * Toolkit in an unusual place? -DCUDAToolkit_ROOT=/path/to/cuda and put its bin folder on PATH.")
    endif()
  elseif(STATEPORT_BACKEND STREQUAL "HIP")
    find_program(STATEPORT_HIPCC NAMES hipcc HINTS ENV ROCM_PATH /opt/rocm PATH_SUFFIXES bin)
    if(NOT STATEPORT_HIPCC)
      message(FATAL_ERROR
        "STATEPORT_BACKEND is HIP, and no hipcc (ROCm 6.2 or newer) was found.\n"
        "  * No AMD GPU here? Build for the CPU: cmake --preset openmp (or -DSTATEPORT_BACKEND=OPENMP).\n"
        "  * ROCm in an unusual place? Set ROCM_PATH to it.")
    endif()
  endif()
endfunction()

# The pinned release. Device code is compiled as a CMake language, so that any host compiler will do.
macro(stateport_fetch_kokkos)
  if(STATEPORT_BACKEND STREQUAL "CUDA" AND CMAKE_VERSION VERSION_LESS 3.25.2)
    message(FATAL_ERROR "Kokkos 5 with CUDA as a language needs CMake 3.25.2 or newer; this is ${CMAKE_VERSION}. "
      "PyPI has newer ones: python3 -m pip install cmake")
  endif()
  set(stateport_kokkos_options Kokkos_ENABLE_${STATEPORT_BACKEND}=ON Kokkos_ENABLE_SERIAL=ON)
  set(stateport_kokkos_language CXX)
  if(NOT STATEPORT_BACKEND STREQUAL "OPENMP")
    list(APPEND stateport_kokkos_options Kokkos_ENABLE_COMPILE_AS_CMAKE_LANGUAGE=ON)
    set(stateport_kokkos_language ${STATEPORT_BACKEND})
  else()
    # Kokkos built here leaves OpenMP to its users; a found one looks for it in its package file.
    find_package(OpenMP REQUIRED COMPONENTS CXX)
  endif()
  set(CMAKE_CXX_STANDARD 20)  # of Kokkos 4; the default is 17
  stateport_fetch(Kokkos
    OPTIONS ${stateport_kokkos_options})
  set(Kokkos_COMPILE_LANGUAGE ${stateport_kokkos_language})
  set(Kokkos_DEVICES ${STATEPORT_BACKEND})
endmacro()

stateport_require_toolkit()
set(STATEPORT_BUNDLES_KOKKOS OFF)
if(NOT TARGET Kokkos::kokkos)
  # separable_compilation: a CUDA Kokkos must not put its launcher before every compile of the project.
  stateport_find(Kokkos 4.6 COMPONENTS separable_compilation)
  if(Kokkos_FOUND)
    message(STATUS "Found Kokkos ${Kokkos_VERSION} for ${Kokkos_DEVICES}: ${Kokkos_DIR}")
    set(stateport_kokkos_target Kokkos::kokkos)
    if(TARGET Kokkos::kokkoscore)
      set(stateport_kokkos_target Kokkos::kokkoscore)
    endif()
    stateport_sbom_add(Kokkos "${Kokkos_VERSION}" ${stateport_kokkos_target})
  else()
    if(Kokkos_CONSIDERED_VERSIONS)
      message(STATUS "Kokkos ${Kokkos_CONSIDERED_VERSIONS} is older than 4.6: not used (${Kokkos_CONSIDERED_CONFIGS})")
    endif()
    set(STATEPORT_BUNDLES_KOKKOS ON)
    stateport_fetch_kokkos()
  endif()
endif()

if(DEFINED Kokkos_DEVICES)
  string(TOUPPER "${Kokkos_DEVICES}" stateport_kokkos_devices)
  if(NOT STATEPORT_BACKEND IN_LIST stateport_kokkos_devices)
    message(FATAL_ERROR
      "STATEPORT_BACKEND is ${STATEPORT_BACKEND}, but the Kokkos in ${Kokkos_DIR} was built for: ${Kokkos_DEVICES}.\n"
      "  * name one built with Kokkos_ENABLE_${STATEPORT_BACKEND}=ON: -DKokkos_ROOT=/path/to/kokkos;\n"
      "  * or let CMake download and build one: -DCMAKE_DISABLE_FIND_PACKAGE_Kokkos=ON;\n"
      "  * or build for what this one has: -DSTATEPORT_BACKEND=…")
  endif()
endif()

if(Kokkos_COMPILE_LANGUAGE MATCHES "^(CUDA|HIP)$")
  enable_language(${Kokkos_COMPILE_LANGUAGE})
  if(NOT CMAKE_${Kokkos_COMPILE_LANGUAGE}20_STANDARD_COMPILE_OPTION)
    message(FATAL_ERROR
      "This Kokkos is compiled with ${Kokkos_COMPILE_LANGUAGE} as a language, and CMake ${CMAKE_VERSION} knows no C++20 "
      "for it: CUDA needs CMake 3.25.2 or newer. PyPI has one: python3 -m pip install cmake")
  endif()
endif()

# stateport_use_kokkos(target [SOURCES a.cpp…] [KERNELS b.cpp…]): lets the sources of `target`, or these alone, include
# Kokkos. Where Kokkos is compiled as a language, those that are not KERNELS compile as one source if the target compiles
# in batches: a device's compiler takes most of its time for Kokkos' headers, and CMake batches no such language. Kokkos is
# linked PRIVATE: users of the target see none of its headers. Call it after the target's sources are complete.
function(stateport_use_kokkos target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;KERNELS")
  target_link_libraries(${target} PRIVATE
    $<BUILD_INTERFACE:Kokkos::kokkos> $<INSTALL_INTERFACE:stateport::kokkos_runtime>)
  if(Kokkos_COMPILE_LANGUAGE MATCHES "^(CUDA|HIP)$")
    set(sources ${arg_SOURCES})
    if(NOT sources)
      get_target_property(sources ${target} SOURCES)
    endif()
    list(FILTER sources INCLUDE REGEX "\\.cpp$")
    get_target_property(in_batches ${target} UNITY_BUILD)
    if(in_batches)
      set(includes "")
      foreach(source IN LISTS sources)
        get_filename_component(path ${source} ABSOLUTE)
        string(APPEND includes "#include \"${path}\"\n")
      endforeach()
      set(batch ${CMAKE_CURRENT_BINARY_DIR}/${target}_kokkos.cpp)
      file(CONFIGURE OUTPUT ${batch} CONTENT "${includes}" @ONLY)
      set_source_files_properties(${sources} TARGET_DIRECTORY ${target} PROPERTIES HEADER_FILE_ONLY ON)
      target_sources(${target} PRIVATE ${batch})
      set(sources ${batch})
    endif()
    set_source_files_properties(${sources} ${arg_KERNELS} TARGET_DIRECTORY ${target} PROPERTIES
      LANGUAGE ${Kokkos_COMPILE_LANGUAGE} SKIP_UNITY_BUILD_INCLUSION ON)
    set_target_properties(${target} PROPERTIES
      ${Kokkos_COMPILE_LANGUAGE}_STANDARD 20 ${Kokkos_COMPILE_LANGUAGE}_STANDARD_REQUIRED ON)
  elseif(Kokkos_ENABLE_CUDA AND COMMAND kokkos_compilation)
    kokkos_compilation(TARGET ${target})
  endif()
  if(STATEPORT_BACKEND STREQUAL "CUDA" AND fmt_VERSION VERSION_LESS 11)
    # Older fmt takes nvcc for a compiler without constexpr, and then cannot check format strings at compile time.
    target_compile_definitions(${target} PRIVATE FMT_USE_CONSTEXPR=1)
  endif()
endfunction()
