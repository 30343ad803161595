# SPDX-License-Identifier: Apache-2.0
# stateport::hiredis, if hiredis 1.0 or newer is here, and what it brings for TLS: sets STATEPORT_HIREDIS and
# STATEPORT_HIREDIS_TLS. hiredis' own CMake package is not asked: it names its targets differently from version to
# version.
find_path(STATEPORT_HIREDIS_INCLUDE hiredis/hiredis.h)
find_library(STATEPORT_HIREDIS_LIBRARY hiredis)
find_library(STATEPORT_HIREDIS_SSL_LIBRARY hiredis_ssl)
mark_as_advanced(STATEPORT_HIREDIS_INCLUDE STATEPORT_HIREDIS_LIBRARY STATEPORT_HIREDIS_SSL_LIBRARY)

set(STATEPORT_HIREDIS OFF)
set(STATEPORT_HIREDIS_TLS OFF)
if(STATEPORT_HIREDIS_LIBRARY AND STATEPORT_HIREDIS_INCLUDE)
  file(STRINGS "${STATEPORT_HIREDIS_INCLUDE}/hiredis/hiredis.h" stateport_hiredis_major
    REGEX "^#define HIREDIS_MAJOR +[1-9]")
  if(stateport_hiredis_major)
    set(STATEPORT_HIREDIS ON)
  endif()
endif()
if(STATEPORT_HIREDIS AND STATEPORT_HIREDIS_SSL_LIBRARY)
  find_package(OpenSSL QUIET COMPONENTS SSL)
  if(TARGET OpenSSL::SSL)
    set(STATEPORT_HIREDIS_TLS ON)
  endif()
endif()

if(STATEPORT_HIREDIS AND NOT TARGET stateport::hiredis)
  add_library(stateport::hiredis INTERFACE IMPORTED GLOBAL)
  set_target_properties(stateport::hiredis PROPERTIES INTERFACE_LINK_LIBRARIES "${STATEPORT_HIREDIS_LIBRARY}")
  target_include_directories(stateport::hiredis SYSTEM INTERFACE "${STATEPORT_HIREDIS_INCLUDE}")
  if(STATEPORT_HIREDIS_TLS)
    target_link_libraries(stateport::hiredis INTERFACE "${STATEPORT_HIREDIS_SSL_LIBRARY}" OpenSSL::SSL)
  endif()
endif()
