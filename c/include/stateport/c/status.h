// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_STATUS_H
#define STATEPORT_C_STATUS_H

#include <stddef.h>
#include <stdint.h>

/// Errors and the version. The conventions are in stateport/c/core.h.
#ifdef __cplusplus
extern "C" {
#endif

typedef enum stateport_status {
  STATEPORT_OK = 0,
  STATEPORT_INVALID_ARGUMENT = 1,  ///< a caller's mistake: argument, value and rule are in the text
  STATEPORT_INVALID_HANDLE = 2,    ///< null, destroyed, of another kind, or never a handle
  STATEPORT_NO_CAPACITY = 3,       ///< a pool has not enough now: evict, preempt or wait
  STATEPORT_OUT_OF_MEMORY = 4,     ///< of the host, the device or a budget; docs/c.md for the state of objects then
  STATEPORT_BACKEND_ERROR = 5,     ///< the vendor's runtime refused a call, or there is no device
  STATEPORT_INTERNAL_ERROR = 6,    ///< a defect of this library
  /// A call at a wrong time: too early, too late, twice, or of something that is switched off. The same arguments can
  /// be right at another time. Nothing has changed.
  STATEPORT_INVALID_STATE = 7
} stateport_status;

/// The message of the last call of this thread that failed; "" before one failed. Valid until the next one fails.
const char* stateport_last_error(void);
/// "0.2.0"
const char* stateport_version(void);

typedef int32_t stateport_flag;  ///< 0: no; any other number: yes
#define STATEPORT_NONE (-1)      ///< no slot, no block

#ifdef __cplusplus
}
#endif

#endif
