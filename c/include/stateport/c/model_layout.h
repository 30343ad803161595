// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_MODEL_LAYOUT_H
#define STATEPORT_C_MODEL_LAYOUT_H

#include <stateport/c/spec.h>
#include <stateport/c/status.h>

/// How tensor-parallel ranks and pipeline stages share a model's state: stateport::ModelLayout. The conventions are in
/// stateport/c/core.h.
#ifdef __cplusplus
extern "C" {
#endif

/// The state of a whole model, or of one group of its layers, and how ranks share it. Immutable.
typedef struct stateport_model_layout stateport_model_layout;

/// Part of a model's state: the part of the layers [layer_begin, layer_end) that rank `head_group` of a tensor-parallel
/// group of `head_groups` ranks holds. All zero: the whole. 16 bytes for ever.
typedef struct stateport_shard {
  int32_t layer_begin;
  int32_t layer_end;
  int32_t head_group;
  int32_t head_groups;
} stateport_shard;

/// A run of the extent along which a tensor is split: `extent` elements in `parts` equal parts, which are heads, or
/// groups of heads. Ranks take whole parts. Where there are fewer parts than ranks, neighbouring ranks hold the same
/// part, unless unique is set. 16 bytes for ever.
typedef struct stateport_split_band {
  int64_t extent;
  int32_t parts;
  stateport_flag unique;  ///< not 0: no two ranks hold the same part
} stateport_split_band;

/// How one tensor of the whole model is split: along extent `axis` of its shape (of a conv tensor 1, the channels),
/// each band by itself. 24 bytes for ever.
typedef struct stateport_tensor_split {
  const stateport_split_band* bands;
  size_t band_count;
  int32_t axis;
  int32_t reserved;  ///< 0
} stateport_tensor_split;

/// whole: the tensors before they are split, layers ascending. splits: [count] one for each tensor.
stateport_status stateport_model_layout_create(stateport_spec* whole, const stateport_tensor_split* splits,
                                               size_t count, stateport_model_layout** out);
/// Of a model of the catalogue. options: null is all zeros.
stateport_status stateport_model_layout_find(const char* model, const stateport_spec_options* options,
                                             stateport_model_layout** out);
/// Of the model of a config.json, see stateport_config_describe.
stateport_status stateport_model_layout_from_config(const char* config, size_t config_bytes,
                                                    const stateport_spec_options* options,
                                                    stateport_model_layout** out);
stateport_status stateport_model_layout_destroy(stateport_model_layout* layout);
/// Identifies kinds, shapes, layers and splits of the whole model: equal for every rank, element type and memory order.
stateport_status stateport_model_layout_fingerprint(stateport_model_layout* layout, uint64_t* out);
/// The tensors of a rank's state.
stateport_status stateport_model_layout_spec(stateport_model_layout* layout, const stateport_shard* shard,
                                             stateport_spec** out);

#ifdef __cplusplus
}
#endif

#endif
