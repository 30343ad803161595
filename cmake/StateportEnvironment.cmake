# SPDX-License-Identifier: Apache-2.0
# Build folders are shared between the machine and the Debian root of cmake/bootstrap.sh, where another compiler and
# other libraries lie under the same paths; CMake would go on with what it remembers of the other side. So a build
# folder remembers the environment that configured it.
#
# Included: stops a configure in a folder that another environment made.
# As a script, `cmake -P cmake/StateportEnvironment.cmake FOLDER…`: removes those of the folders that another
# environment made.
set(stateport_environment "cmake ${CMAKE_VERSION}")
if(EXISTS /etc/os-release)
  file(STRINGS /etc/os-release stateport_release_line REGEX "^PRETTY_NAME=" LIMIT_COUNT 1)
  string(REGEX REPLACE "^PRETTY_NAME=\"?([^\"]*)\"?$" "\\1" stateport_release "${stateport_release_line}")
  string(PREPEND stateport_environment "${stateport_release}, ")
endif()

if(CMAKE_SCRIPT_MODE_FILE)
  math(EXPR stateport_last "${CMAKE_ARGC} - 1")
  foreach(index RANGE 3 ${stateport_last})
    set(folder "${CMAKE_ARGV${index}}")
    if(EXISTS "${folder}/CMakeCache.txt")
      file(STRINGS "${folder}/CMakeCache.txt" line REGEX "^STATEPORT_ENVIRONMENT:" LIMIT_COUNT 1)
      string(REGEX REPLACE "^[^=]*=" "" made_by "${line}")
      if(NOT made_by STREQUAL stateport_environment)
        message(STATUS "Removing ${folder}: it was made by ${made_by}, this is ${stateport_environment}")
        file(REMOVE_RECURSE "${folder}")
      endif()
    endif()
  endforeach()
  return()
endif()

if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR)
  if(DEFINED CACHE{STATEPORT_ENVIRONMENT} AND NOT STATEPORT_ENVIRONMENT STREQUAL stateport_environment)
    message(FATAL_ERROR
      "The build folder ${CMAKE_BINARY_DIR} was made by: ${STATEPORT_ENVIRONMENT}\n"
      "This is: ${stateport_environment}\n"
      "Start it anew with cmake --fresh (and the same arguments), or remove the folder.")
  endif()
  set(STATEPORT_ENVIRONMENT "${stateport_environment}" CACHE INTERNAL "What configured this build folder")
endif()
