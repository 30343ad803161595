// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_CACHE_TIERS_H
#define STATEPORT_C_CACHE_TIERS_H

#include <stateport/c/request_cache.h>
#include <stateport/c/status.h>
#include <stateport/c/transfers.h>

/// The tiers below the device, as the mover of the bytes sees them: stateport::CacheTiers. The conventions are in
/// stateport/c/core.h.
///
///     start, plan, insert, commit, end → carry `transfers` out → enqueue all else that was answered
///     whenever some have ended         → settle → carry `transfers` out
///
/// An answer with the member `transfers` names every transfer that was decided since the last such answer: by the same
/// call, and by calls whose answers have no such member (an end without copies, cancel, reset, attach, a start or an
/// insert without room). Each transfer is named once: it is carried out even if the plan that names it is cancelled or
/// replaced. It lies in memory of the cache until its next call. A settle of nothing asks for transfers at any time.
///
/// Order. A store reads a slot that a copy answered later may overwrite, and a load writes a slot that a copy answered
/// earlier may read or write. So the transfers of an answer are enqueued before all else that it names. The answer of a
/// commit, an insert or an end is enqueued before any later call. A plan (and the `next` of a commit) is enqueued
/// before the next start, unless it is cancelled. A settle that ends the last find of a request counts as a start.
///
/// stateport/c/state_tiers.h carries transfers out. Without stateport_request_cache_options.tiers no answer has
/// transfers, and all of the calls here but tier_usage are refused with STATEPORT_INVALID_STATE.
#ifdef __cplusplus
extern "C" {
#endif

/// The answer of stateport_request_cache_settle.
typedef struct stateport_settled_transfers {
  size_t size;
  /// Number of requests that have all that was loaded for them, or will not get it. Some may wait for other requests
  /// now (stateport_share_running).
  int32_t ready_requests;
  const stateport_transfer* transfers;
  size_t transfer_count;
} stateport_settled_transfers;

/// These transfers ended, in any order. A load that is STATEPORT_TRANSFER_DONE was written, or is enqueued before all
/// that is enqueued from now on. When all finds of a request have ended, more finds or a load may follow. Refused, and
/// nothing is settled: a number that is not under way, or that stands twice.
stateport_status stateport_request_cache_settle(stateport_request_cache* cache,
                                                const stateport_transfer_result* results, size_t count,
                                                stateport_settled_transfers* out);
/// loading: [count] not 0: something is being asked or loaded for the request, or was being loaded when it ended. Until
/// then no pass can run it: chunk says 0. Refused: a request that does not run.
stateport_status stateport_request_cache_loading(stateport_request_cache* cache, const int64_t* requests, size_t count,
                                                 uint8_t* loading);
/// Names stores of all checkpoints and copies of all that is on the host, to files or, where there are none, to the
/// remote tier. The contents stay where they are, too. Ends where there is no room or no place in the queue: once these
/// transfers have settled, another call goes on. All is written when a call names nothing and nothing is under way. A
/// transfer that failed is named again: give up when nothing more is written (stateport_tier_usage).
stateport_status stateport_request_cache_drain(stateport_request_cache* cache, stateport_transfer_plan* out);
/// The tier has these images, from before the cache was made, or from another one. attached: [count] 0: there is no
/// number left for the image, or no room in the tier: it is to be removed, but for the remote tier. A state of several
/// groups is there once all of its images were attached, one after the other, as a file tier lists them. If the next
/// image is attached or the next call ends before, the images of this state are dropped. Refused, which ends the call
/// after `done` images: a medium that is no tier of this cache, tokens that are not whole blocks, a group that the
/// cache does not have, KV with leading_blocks.
stateport_status stateport_request_cache_attach(stateport_request_cache* cache, int32_t medium,
                                                const stateport_image_key* images, size_t count, uint8_t* attached,
                                                size_t* done);
/// From now on loads are weighed by these instead of those of stateport_tier_options: for speeds that are measured
/// while the engine runs, the same on all ranks.
stateport_status stateport_request_cache_set_speeds(stateport_request_cache* cache,
                                                    const stateport_tier_speeds* speeds);
/// medium: stateport_medium. All zero for one that is no tier.
stateport_status stateport_request_cache_tier_usage(stateport_request_cache* cache, int32_t medium,
                                                    stateport_tier_usage* out);

#ifdef __cplusplus
}
#endif

#endif
