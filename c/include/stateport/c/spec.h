// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_SPEC_H
#define STATEPORT_C_SPEC_H

#include <stateport/c/status.h>

/// The tensors of one state: stateport::StateSpec and the catalogue. The conventions are in stateport/c/core.h.
#ifdef __cplusplus
extern "C" {
#endif

typedef enum stateport_element_type {
  STATEPORT_DEFAULT_TYPE = 0,  ///< the catalogue's; no type of a tensor
  STATEPORT_FP32,
  STATEPORT_FP16,
  STATEPORT_BF16,
  STATEPORT_FP64,
  STATEPORT_FP8,
  STATEPORT_INT8,
  /// Of recurrent tensors of checkpoints: int8 in blocks of 32 along the last extent, then an fp16 scale for each
  /// block.
  STATEPORT_INT8_BLOCK32
} stateport_element_type;
typedef enum stateport_state_kind { STATEPORT_CONV = 0, STATEPORT_RECURRENT } stateport_state_kind;
/// Of a conv state: SD = [window, dim], DS = [dim, window].
typedef enum stateport_conv_layout { STATEPORT_SD = 0, STATEPORT_DS } stateport_conv_layout;

/// The tensors of one state, in layer order, conv before recurrent. Immutable.
typedef struct stateport_spec stateport_spec;

typedef struct stateport_spec_options {
  size_t size;
  int32_t drafts;          ///< each adds one conv token
  int32_t conv_layout;     ///< stateport_conv_layout
  int32_t recurrent_type;  ///< stateport_element_type
} stateport_spec_options;

/// One tensor, as it is for one slot.
typedef struct stateport_tensor_spec {
  size_t size;
  int32_t layer;        ///< among the model's state layers
  int32_t group;        ///< layers that share a block table
  int32_t kind;         ///< stateport_state_kind
  int32_t type;         ///< stateport_element_type
  int32_t conv_layout;  ///< stateport_conv_layout
  int64_t shape[3];     ///< conv: [window, dim, 1] in either layout; recurrent: unused extents are 1
  /// conv: element (token, channel) lies token * token_stride + channel * channel_stride elements past the start of a
  /// slot. Both 0: as conv_layout says, without gaps. Written as they are, of a recurrent tensor as 0.
  int64_t token_stride;
  int64_t channel_stride;
} stateport_tensor_spec;

typedef struct stateport_spec_info {
  size_t size;
  size_t tensors;
  uint64_t slot_bytes;   ///< one state without padding
  uint64_t fingerprint;  ///< of the memory layout; equal specs have equal ones on every machine
} stateport_spec_info;

/// A model, of the catalogue or of a config. Its texts are constants of the library.
typedef struct stateport_model_info {
  size_t size;
  const char* name;    ///< of the catalogue; of a config its model type
  const char* kind;    ///< mamba1, mamba2, gdn, kda, linear_attn, short_conv or cca
  const char* status;  ///< how far the row was checked against public configs
  int32_t layers;
  int32_t state_layers;         ///< that have more state than a window of KV
  uint64_t kv_bytes_per_token;  ///< over all layers that attend to all tokens, in bf16; 0: not known
} stateport_model_info;

/// The names of the catalogue; null for an index behind the last.
const char* stateport_model_name(size_t index);
stateport_status stateport_model_describe(const char* model, stateport_model_info* out);
/// The model of a checkpoint, from the text of its config.json: stateport::models::from_config says which it reads, and
/// which it refuses (STATEPORT_INVALID_ARGUMENT).
stateport_status stateport_config_describe(const char* config, size_t config_bytes, stateport_model_info* out);
/// The spec of a model of the catalogue. options: null is all zeros.
stateport_status stateport_spec_find(const char* model, const stateport_spec_options* options, stateport_spec** out);
/// The spec of the model of a config.json, see stateport_config_describe.
stateport_status stateport_spec_from_config(const char* config, size_t config_bytes,
                                            const stateport_spec_options* options, stateport_spec** out);
/// A spec of the caller's own.
stateport_status stateport_spec_create(const stateport_tensor_spec* tensors, size_t count, stateport_spec** out);
/// The spec of checkpoints of the states of `live` when their recurrent tensors are kept as recurrent_type (FP32, FP16,
/// BF16 or INT8_BLOCK32). Copies between stores of both specs convert on the way. STATEPORT_INVALID_ARGUMENT for
/// another type, and when a recurrent tensor of `live` is none of FP32, FP16 and BF16.
stateport_status stateport_spec_quantised(stateport_spec* live, int32_t recurrent_type, stateport_spec** out);
stateport_status stateport_spec_destroy(stateport_spec* spec);
stateport_status stateport_spec_describe(stateport_spec* spec, stateport_spec_info* out);
stateport_status stateport_spec_tensor(stateport_spec* spec, size_t index, stateport_tensor_spec* out);

#ifdef __cplusplus
}
#endif

#endif
