# SPDX-License-Identifier: Apache-2.0
# cmake -P reachable.cmake FILE: fails unless the site of the pinned releases answers within some seconds.
file(DOWNLOAD https://github.com/kokkos/kokkos/releases/download/5.2.2/kokkos-5.2.2-SHA-256.txt "${CMAKE_ARGV3}"
     STATUS status TIMEOUT 15 INACTIVITY_TIMEOUT 8)
list(GET status 0 code)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "${status}")
endif()
