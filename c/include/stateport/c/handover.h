// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_HANDOVER_H
#define STATEPORT_C_HANDOVER_H

#include <stateport/c/copies.h>
#include <stateport/c/model_layout.h>
#include <stateport/c/state_tiers.h>
#include <stateport/c/status.h>
#include <stateport/c/store.h>
#include <stateport/c/transfers.h>

/// States that go from one group of ranks to another, through a transport of the engine's: stateport::plan_handover and
/// stateport::HandoverEnd. The conventions are in stateport/c/core.h.
#ifdef __cplusplus
extern "C" {
#endif

/// A rank, and the part of the model that it holds. 20 bytes for ever.
typedef struct stateport_rank {
  int32_t global_rank;
  stateport_shard shard;
} stateport_rank;

/// Bytes that a transport moves from one rank's memory to another's. Offsets are those in a place of the ranks' ends.
/// 32 bytes for ever.
typedef struct stateport_handover_range {
  int32_t src_rank;
  int32_t dst_rank;
  uint64_t src_offset;
  uint64_t dst_offset;
  uint64_t bytes;
} stateport_handover_range;

/// The states and KV that are handed over; equal on all ranks.
typedef struct stateport_handover_options {
  size_t size;
  const void* model;  ///< names the model: weights, revision, whatever makes states of two models differ
  size_t model_bytes;
  int32_t content;  ///< stateport_content
  int32_t group;    ///< of a state
  stateport_object_encoding encoding;
  int32_t head_groups;        ///< of stateport_handover_plan, which does not read it
  int32_t layers_per_object;  ///< the same
} stateport_handover_options;

/// Every rank of the destinations gets its share once, from the smallest source that has it. Writes the grid into
/// `options`, at most `capacity` ranges into `out`, and into `count` how many there are: ordered by destination as
/// given, and offset there. Refused: ranks that cannot share the model, a rank named twice on one side, a part that no
/// source has. A pure function.
stateport_status stateport_handover_plan(stateport_model_layout* layout, const stateport_rank* sources,
                                         size_t source_count, const stateport_rank* destinations,
                                         size_t destination_count, stateport_handover_options* options,
                                         stateport_handover_range* out, size_t capacity, size_t* count);

/// One rank's end of hand-overs: pinned memory for states on their way, in places.
///
///     source       pack → its copy is done → seal → the transport moves ranges
///     destination  the transport says that they came → check → unpack
typedef struct stateport_handover_end stateport_handover_end;

typedef struct stateport_handover_memory {
  size_t size;
  void* base;            ///< of place 0; a multiple of 4 KiB
  uint64_t bytes;        ///< of all places, one behind the other
  uint64_t place_bytes;  ///< of one
} stateport_handover_memory;

/// store: of the rank; shared: how it shares the model. options: with the grid of the plan.
stateport_status stateport_handover_end_create(stateport_store* store, const stateport_shared_layout* shared,
                                               const stateport_handover_options* options, int32_t places,
                                               stateport_handover_end** out);
/// Waits for the device.
stateport_status stateport_handover_end_destroy(stateport_handover_end* end);
stateport_status stateport_handover_end_describe(stateport_handover_end* end, stateport_handover_memory* out);
/// Enqueues the copies of slots (src) into places (dst), in one launch.
stateport_status stateport_handover_end_pack(stateport_handover_end* end, void* stream,
                                             const stateport_slot_copy* copies, size_t count);
/// Writes headers with checksums, once the copy is done.
stateport_status stateport_handover_end_seal(stateport_handover_end* end, int32_t place,
                                             const stateport_image_key* key);
/// status: STATEPORT_TRANSFER_DONE if the objects are the whole and undamaged state that `key` names, else
/// STATEPORT_TRANSFER_DAMAGED, …_FOREIGN_LAYOUT or …_WRONG_POSITION. Reads every byte.
stateport_status stateport_handover_end_check(stateport_handover_end* end, int32_t place,
                                              const stateport_image_key* key, int32_t* status);
/// Enqueues the copies of places (src) into slots (dst), in one launch; only of places that were checked.
stateport_status stateport_handover_end_unpack(stateport_handover_end* end, void* stream,
                                               const stateport_slot_copy* copies, size_t count);

#ifdef __cplusplus
}
#endif

#endif
