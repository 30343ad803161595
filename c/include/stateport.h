// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_H
#define STATEPORT_H

/// stateport for C11, and for every language that calls C: link stateport::c, or `pkg-config stateport-c`. Conventions
/// of results, handles, structs, arrays and threads are those of <stateport/c/core.h>. Beyond them:
///
/// Streams are native: a cudaStream_t or hipStream_t, null for the default one; null always in an OpenMP build. Calls
/// that take one enqueue work and do not wait.
#include <stateport/c/align.h>           // IWYU pragma: export
#include <stateport/c/core.h>            // IWYU pragma: export
#include <stateport/c/elastic.h>         // IWYU pragma: export
#include <stateport/c/file_tier.h>       // IWYU pragma: export
#include <stateport/c/handover.h>        // IWYU pragma: export
#include <stateport/c/integrity.h>       // IWYU pragma: export
#include <stateport/c/parts.h>           // IWYU pragma: export
#include <stateport/c/remote_store.h>    // IWYU pragma: export
#include <stateport/c/resharder.h>       // IWYU pragma: export
#include <stateport/c/state_tiers.h>     // IWYU pragma: export
#include <stateport/c/step_committer.h>  // IWYU pragma: export
#include <stateport/c/store.h>           // IWYU pragma: export

#endif
