// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_STORE_H
#define STATEPORT_C_STORE_H

#include <stddef.h>
#include <stdint.h>

/// Errors, the runtime, state specs, stores and copies. The conventions are told in stateport.h.
#ifdef __cplusplus
extern "C" {
#endif

typedef enum stateport_status {
  STATEPORT_OK = 0,
  STATEPORT_INVALID_ARGUMENT = 1,  ///< a caller's mistake: argument, value and rule are in the text
  STATEPORT_INVALID_HANDLE = 2,    ///< null, destroyed, of another kind, or never a handle
  STATEPORT_NO_CAPACITY = 3,       ///< a pool has not enough now: evict, preempt or wait
  STATEPORT_OUT_OF_MEMORY = 4,     ///< of the host, the device or a budget
  STATEPORT_BACKEND_ERROR = 5,     ///< the vendor's runtime refused a call, or there is no device
  STATEPORT_INTERNAL_ERROR = 6     ///< a defect of this library
} stateport_status;

/// What the last call of this thread that failed has to say; "" before one failed. Valid until the next one fails.
const char* stateport_last_error(void);
/// "0.1.0"
const char* stateport_version(void);
/// What the library was built for: "CUDA", "HIP" or "OpenMP".
const char* stateport_backend(void);

#define STATEPORT_NONE (-1)        ///< no slot, no block
#define STATEPORT_ANY_DEVICE (-1)  ///< the device in use, or the thread's current one

/// Starts the device; make one before any store, copier or align context. An engine that runs Kokkos keeps it, and a
/// context that it made on the device is used. Without a handle left, what was started stays until the program ends.
typedef struct stateport_runtime stateport_runtime;

typedef struct stateport_runtime_options {
  size_t size;
  int32_t device_id;     ///< 0 is a device
  int32_t host_threads;  ///< of an OpenMP build; 0: what OpenMP says
} stateport_runtime_options;

/// options: null is STATEPORT_ANY_DEVICE.
stateport_status stateport_runtime_create(const stateport_runtime_options* options, stateport_runtime** out);
stateport_status stateport_runtime_destroy(stateport_runtime* runtime);

/// Waits until everything enqueued on the stream is done.
stateport_status stateport_stream_synchronize(void* stream);
/// Drops what is kept for an engine's stream; call it before the stream is destroyed.
stateport_status stateport_stream_forget(void* stream);
/// Enqueues a copy between any kinds of memory.
stateport_status stateport_copy_bytes(void* stream, void* dst, const void* src, size_t bytes);

// --- What one state consists of --------------------------------------------------------------------------------------

typedef enum stateport_element_type {
  STATEPORT_DEFAULT_TYPE = 0,  ///< the catalogue's; no type of a tensor
  STATEPORT_FP32,
  STATEPORT_FP16,
  STATEPORT_BF16,
  STATEPORT_FP64,
  STATEPORT_FP8,
  STATEPORT_INT8
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
} stateport_tensor_spec;

typedef struct stateport_spec_info {
  size_t size;
  size_t tensors;
  uint64_t slot_bytes;   ///< one state without padding
  uint64_t fingerprint;  ///< of the memory layout; equal specs have equal ones on every machine
} stateport_spec_info;

/// The names of the catalogue; null for an index behind the last.
const char* stateport_model_name(size_t index);
/// The spec of a model of the catalogue. options: null is all zeros.
stateport_status stateport_spec_find(const char* model, const stateport_spec_options* options, stateport_spec** out);
/// A spec of the caller's own.
stateport_status stateport_spec_create(const stateport_tensor_spec* tensors, size_t count, stateport_spec** out);
stateport_status stateport_spec_destroy(stateport_spec* spec);
stateport_status stateport_spec_describe(stateport_spec* spec, stateport_spec_info* out);
stateport_status stateport_spec_tensor(stateport_spec* spec, size_t index, stateport_tensor_spec* out);

// --- Memory for states -----------------------------------------------------------------------------------------------

/// Slots 0 … slots - 1, each with room for one state: memory of its own, or a view of the engine's tensors.
typedef struct stateport_store stateport_store;

typedef enum stateport_store_layout {
  STATEPORT_LAYER_MAJOR = 0,  ///< [tensor][slot]
  STATEPORT_SLOT_MAJOR        ///< [slot][tensor]
} stateport_store_layout;

typedef struct stateport_store_options {
  size_t size;
  int32_t slots;   ///< at least 1
  int32_t layout;  ///< stateport_store_layout
  /// The engine's allocator of device memory, both or neither: null from `allocate` means exhausted.
  void* (*allocate)(size_t bytes, size_t alignment, void* stream, void* context);
  void (*deallocate)(void* memory, size_t bytes, size_t alignment, void* stream, void* context);
  void* context;  ///< handed to both; must outlive the store
} stateport_store_options;

/// Where one tensor lies: slot s starts at base + s * slot_stride_bytes.
typedef struct stateport_tensor_memory {
  size_t size;
  void* base;  ///< device memory
  int64_t slot_stride_bytes;
} stateport_tensor_memory;

/// Owned: one allocation, ordered on `stream`; nothing is cleared.
stateport_status stateport_store_create(stateport_spec* spec, const stateport_store_options* options, void* stream,
                                        stateport_store** out);
/// A view: tensors[i] is the memory of tensor i of the spec. It must outlive the store and every user of the store.
stateport_status stateport_store_view(stateport_spec* spec, const stateport_tensor_memory* tensors, size_t count,
                                      int32_t slots, stateport_store** out);
/// Owned memory goes back in the order of its stream, when its last user is destroyed.
stateport_status stateport_store_destroy(stateport_store* store);
stateport_status stateport_store_tensor(stateport_store* store, size_t index, stateport_tensor_memory* out);

// --- Copies ----------------------------------------------------------------------------------------------------------

/// One state to copy; 16 bytes for ever. A negative slot skips its part.
///     conv tensors:      tokens [conv_shift, window) of src_slot → tokens [0, window - conv_shift) of dst_slot
///     recurrent tensors: the whole state of recurrent_src_slot   → dst_slot
typedef struct stateport_slot_copy {
  int32_t src_slot;
  int32_t dst_slot;
  int32_t conv_shift;          ///< 0: the whole window
  int32_t recurrent_src_slot;  ///< usually src_slot
} stateport_slot_copy;

/// Within a store, in one launch; conv_shift is 0. `copies` may be reused on return. Refused: a slot out of range, two
/// copies into one slot, a slot that one copy writes and another reads.
stateport_status stateport_store_copy(stateport_store* store, void* stream, const stateport_slot_copy* copies,
                                      size_t count);
/// Zeroes slots in one launch. Negative slots are skipped.
stateport_status stateport_store_clear(stateport_store* store, void* stream, const int32_t* slots, size_t count);

/// Copies between two stores with the same tensors; layouts, strides and element types (fp32, fp16, bf16) may differ.
typedef struct stateport_copier stateport_copier;

stateport_status stateport_copier_create(stateport_store* source, stateport_store* destination, stateport_copier** out);
stateport_status stateport_copier_destroy(stateport_copier* copier);
/// As stateport_store_copy.
stateport_status stateport_copier_copy(stateport_copier* copier, void* stream, const stateport_slot_copy* copies,
                                       size_t count);
/// With conv_shift: the rest of the destination's window stays. Types and conv layouts of the stores must be equal.
stateport_status stateport_copier_copy_shifted(stateport_copier* copier, void* stream,
                                               const stateport_slot_copy* copies, size_t count);
/// As copy_shifted, of copies that lie in device memory and are read when the kernel runs: a graph replay sees new
/// ones. Parts with a slot or a shift out of range are skipped; that no copy reads what another one writes is the
/// caller's care.
stateport_status stateport_copier_copy_on_device(stateport_copier* copier, void* stream,
                                                 const stateport_slot_copy* copies, int32_t count);

/// A copier with two sources for stateport_copier_commit_scratch: states that a scan saved, packed, and live states.
/// The other calls take the first one as their source.
stateport_status stateport_copier_create_scratch(stateport_store* scratch, stateport_store* live,
                                                 stateport_store* destination, stateport_copier** out);
/// The copies of one stateport_checkpoint_commit in one launch. Refused too: two copies into one slot, of either list.
stateport_status stateport_copier_commit_scratch(stateport_copier* copier, void* stream,
                                                 const stateport_slot_copy* intermediates, size_t intermediate_count,
                                                 const stateport_slot_copy* ends, size_t end_count);

// --- Tags ------------------------------------------------------------------------------------------------------------

/// What a slot holds: the state after exactly token_count tokens of a prefix, in one memory layout.
typedef struct stateport_tag {
  size_t size;
  int64_t token_count;  ///< -1: nothing
  uint64_t prefix[2];
  uint64_t layout_fingerprint;  ///< stateport_spec_info.fingerprint
} stateport_tag;

/// How the tag of a slot compares with the wanted one: the first member that differs.
typedef enum stateport_tag_check {
  STATEPORT_TAG_MATCH = 0,    ///< the slot holds exactly what is wanted
  STATEPORT_TAG_EMPTY,        ///< it was never tagged
  STATEPORT_TAG_TOKEN_COUNT,  ///< the state is one after another number of tokens
  STATEPORT_TAG_PREFIX,       ///< the state is one after other tokens
  STATEPORT_TAG_LAYOUT        ///< its bytes mean something else
} stateport_tag_check;

#ifdef __cplusplus
}
#endif

#endif
