// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_RESHARDER_H
#define STATEPORT_C_RESHARDER_H

#include <stateport/c/copies.h>
#include <stateport/c/model_layout.h>
#include <stateport/c/status.h>
#include <stateport/c/store.h>

/// Copies between stores that share a model differently: stateport::Resharder. The conventions are in
/// stateport/c/core.h.
#ifdef __cplusplus
extern "C" {
#endif

/// A store, and the part of a model's state that a slot of it holds: the tensors of stateport_model_layout_spec in
/// their order, with any element types, strides and paddings. 24 bytes for ever.
typedef struct stateport_shard_store {
  stateport_store* store;
  stateport_shard shard;
} stateport_shard_store;

/// Sources together are one state: slot s of each of them. So are destinations. All pieces go in one launch; element
/// types and conv layouts are converted on the way.
typedef struct stateport_resharder stateport_resharder;

/// Refused: stores that do not fit their shards, a piece that no source holds, types that cannot be converted, blocks
/// of int8 that would have to be cut.
stateport_status stateport_resharder_create(stateport_model_layout* layout, const stateport_shard_store* sources,
                                            size_t source_count, const stateport_shard_store* destinations,
                                            size_t destination_count, stateport_resharder** out);
stateport_status stateport_resharder_destroy(stateport_resharder* resharder);
/// Slot `src` of all sources to slot `dst` of all destinations; negative slots are skipped. Refused as
/// stateport_copier_copy.
stateport_status stateport_resharder_copy(stateport_resharder* resharder, void* stream,
                                          const stateport_slot_copy* copies, size_t count);

#ifdef __cplusplus
}
#endif

#endif
