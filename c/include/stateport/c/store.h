// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_STORE_H
#define STATEPORT_C_STORE_H

#include <stateport/c/copies.h>
#include <stateport/c/spec.h>
#include <stateport/c/status.h>

/// The runtime, stores and copies. The conventions are in stateport/c/core.h.
#ifdef __cplusplus
extern "C" {
#endif

/// The backend that the library was built for: "CUDA", "HIP" or "OpenMP".
const char* stateport_backend(void);

#define STATEPORT_ANY_DEVICE (-1)  ///< the device in use, or the thread's current one

/// Starts the device; make one before any store, copier or align context. An engine that runs Kokkos keeps it, and a
/// context that it made on the device is used. Without a handle left, a device that was started stays until the program
/// ends.
typedef struct stateport_runtime stateport_runtime;

typedef struct stateport_runtime_options {
  size_t size;
  int32_t device_id;     ///< 0 is a device
  int32_t host_threads;  ///< of an OpenMP build; 0: as many as OpenMP uses
} stateport_runtime_options;

/// options: null is STATEPORT_ANY_DEVICE.
stateport_status stateport_runtime_create(const stateport_runtime_options* options, stateport_runtime** out);
stateport_status stateport_runtime_destroy(stateport_runtime* runtime);

/// Waits until everything enqueued on the stream is done.
stateport_status stateport_stream_synchronize(void* stream);
/// Drops the resources that this library keeps for an engine's stream; call it before the stream is destroyed.
stateport_status stateport_stream_forget(void* stream);
/// Enqueues a copy between any kinds of memory.
stateport_status stateport_copy_bytes(void* stream, void* dst, const void* src, size_t bytes);

// --- Memory for states -----------------------------------------------------------------------------------------------

/// Slots 0 … slots - 1, each with room for one state: memory of its own, or a view of the engine's tensors.
typedef struct stateport_store stateport_store;

typedef enum stateport_store_layout {
  STATEPORT_LAYER_MAJOR = 0,  ///< [tensor][slot]
  STATEPORT_SLOT_MAJOR        ///< [slot][tensor]
} stateport_store_layout;

typedef struct stateport_store_options {
  size_t size;
  int32_t slots;   ///< at least 1, and no more than memory has
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
/// Refused: null, a stride below the bytes of a slot, or of more bytes for all slots than memory has.
stateport_status stateport_store_view(stateport_spec* spec, const stateport_tensor_memory* tensors, size_t count,
                                      int32_t slots, stateport_store** out);
/// Owned memory goes back in the order of its stream, when its last user is destroyed.
stateport_status stateport_store_destroy(stateport_store* store);
stateport_status stateport_store_tensor(stateport_store* store, size_t index, stateport_tensor_memory* out);

// --- Copies ----------------------------------------------------------------------------------------------------------

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
/// ones. Parts with a slot or a shift out of range are skipped; the caller sees to it that no copy reads a slot that
/// another one writes.
stateport_status stateport_copier_copy_on_device(stateport_copier* copier, void* stream,
                                                 const stateport_slot_copy* copies, int32_t count);

/// The same, of layers [begin, end) alone (stateport_tensor_spec.layer): an engine that copies layer by layer overlaps
/// the copies of the first layers with the forward of those that follow. An empty range copies nothing; one beyond the
/// layers of the stores is refused.
stateport_status stateport_copier_copy_layers(stateport_copier* copier, void* stream, const stateport_slot_copy* copies,
                                              size_t count, int32_t begin, int32_t end);
stateport_status stateport_copier_copy_shifted_layers(stateport_copier* copier, void* stream,
                                                      const stateport_slot_copy* copies, size_t count, int32_t begin,
                                                      int32_t end);
stateport_status stateport_copier_copy_on_device_layers(stateport_copier* copier, void* stream,
                                                        const stateport_slot_copy* copies, int32_t count, int32_t begin,
                                                        int32_t end);

/// A copier with two sources for stateport_copier_commit_scratch: states that a scan saved, packed, and live states.
/// The other calls take the first one as their source.
stateport_status stateport_copier_create_scratch(stateport_store* scratch, stateport_store* live,
                                                 stateport_store* destination, stateport_copier** out);
/// The copies of one stateport_checkpoint_commit in one launch. Refused too: two copies into one slot, of either list.
stateport_status stateport_copier_commit_scratch(stateport_copier* copier, void* stream,
                                                 const stateport_slot_copy* intermediates, size_t intermediate_count,
                                                 const stateport_slot_copy* ends, size_t end_count);
/// The same, of layers [begin, end) alone.
stateport_status stateport_copier_commit_scratch_layers(stateport_copier* copier, void* stream,
                                                        const stateport_slot_copy* intermediates,
                                                        size_t intermediate_count, const stateport_slot_copy* ends,
                                                        size_t end_count, int32_t begin, int32_t end);

#ifdef __cplusplus
}
#endif

#endif
