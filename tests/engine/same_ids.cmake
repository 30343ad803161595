# SPDX-License-Identifier: Apache-2.0
# cmake -DPROGRAM=… -DDRAFTS=n -P: stateport-tiny-engine prints the ids of --cache none with every other cache too, also
# without drafts.
function(ids_of cache drafts result)
  execute_process(COMMAND ${PROGRAM} --cache ${cache} --seed 11 --draft ${drafts} --ids-only
                  OUTPUT_VARIABLE ids ERROR_VARIABLE error RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    if(error MATCHES "no device found")
      message(FATAL_ERROR "SKIPPED: ${error}")
    endif()
    message(FATAL_ERROR "--cache ${cache} ended with ${code}: ${error}")
  endif()
  set(${result} "${ids}" PARENT_SCOPE)
endfunction()

ids_of(none 0 expected)
foreach(cache IN ITEMS none slots tree tree-copy align all tree-align tree-all)
  ids_of(${cache} ${DRAFTS} ids)
  if(NOT ids STREQUAL expected OR NOT ids MATCHES "[0-9]")
    message(FATAL_ERROR "--cache ${cache} --draft ${DRAFTS} prints\n${ids}instead of\n${expected}")
  endif()
endforeach()
