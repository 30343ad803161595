// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_CORE_H
#define STATEPORT_C_CORE_H

/// The part of stateport that needs no device, for C11 and for every language that calls C: link stateport::c_core, or
/// `pkg-config stateport-c-core`. <stateport/c/parts.h> declares planners of the same library, for engines that keep
/// their own cache. <stateport.h> includes both and the rest.
///
/// Results. A function that can fail returns a stateport_status. When it is not STATEPORT_OK, nothing has changed,
/// outputs are not written, and stateport_last_error() tells more. (Only a call with an output `done` may have done a
/// part of an array: its first `done` elements.) No exception leaves a function.
///
/// Handles (stateport_spec*, stateport_tree*, …) are made by `…_create` and ended by `…_destroy`. Their values are
/// tickets, not addresses: null, a handle of another kind, one that was destroyed and any other number are answered
/// with STATEPORT_INVALID_HANDLE. An object that others need lives on when its handle is destroyed: a store may go
/// before the copier made of it. `…_destroy` ignores null.
///
/// Structs. Set `size` to sizeof of the struct; a zero in another member is its default unless it says otherwise. An
/// older caller's smaller struct is completed with zeros; of a newer caller's larger one, the part that this library
/// does not know must be zero. Outputs are written as far as `size` reaches, and zeroed behind the members that this
/// library knows. Arrays of structs lie one `size` apart; of an array of outputs, the `size` of the first one counts
/// for all. stateport_slot_copy alone has no size: kernels read it from device memory.
///
/// Arrays are a pointer and a count; a null pointer is fine with count 0. Text is UTF-8; keys are bytes with a count.
/// Device pointers (bases of tensors, block tables, batches) are the caller's and cannot be checked.
///
/// Threads. Every function may be called by every thread at any time; calls on one handle run one after another. A
/// destroyed handle is refused at once, and its object goes when the last call on it has returned.
///
/// Callbacks (on_victim, leading_blocks) run on the thread of the call that they are a part of, before it returns. They
/// must return: one that throws ends the program. In a callback every call on its own handle, and on locks and planners
/// made of it, is refused with STATEPORT_INVALID_STATE. Other handles may be used, for example to enqueue a copy; but
/// two threads, each in a callback and calling the handle of the other's, wait for each other for ever.
#include <stateport/c/align_options.h>    // IWYU pragma: export
#include <stateport/c/cache_arena.h>      // IWYU pragma: export
#include <stateport/c/cache_epochs.h>     // IWYU pragma: export
#include <stateport/c/cache_integrity.h>  // IWYU pragma: export
#include <stateport/c/cache_prefixes.h>   // IWYU pragma: export
#include <stateport/c/cache_sessions.h>   // IWYU pragma: export
#include <stateport/c/cache_tenants.h>    // IWYU pragma: export
#include <stateport/c/cache_tiers.h>      // IWYU pragma: export
#include <stateport/c/copies.h>           // IWYU pragma: export
#include <stateport/c/eviction.h>         // IWYU pragma: export
#include <stateport/c/hash.h>             // IWYU pragma: export
#include <stateport/c/memory_move.h>      // IWYU pragma: export
#include <stateport/c/model_layout.h>     // IWYU pragma: export
#include <stateport/c/prefix_tree.h>      // IWYU pragma: export
#include <stateport/c/request_cache.h>    // IWYU pragma: export
#include <stateport/c/request_types.h>    // IWYU pragma: export
#include <stateport/c/slot_allocator.h>   // IWYU pragma: export
#include <stateport/c/spec.h>             // IWYU pragma: export
#include <stateport/c/state_check.h>      // IWYU pragma: export
#include <stateport/c/statistics.h>       // IWYU pragma: export
#include <stateport/c/status.h>           // IWYU pragma: export
#include <stateport/c/transfers.h>        // IWYU pragma: export

#endif
