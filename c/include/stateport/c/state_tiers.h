// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_STATE_TIERS_H
#define STATEPORT_C_STATE_TIERS_H

#include <stateport/c/cache_tiers.h>
#include <stateport/c/model_layout.h>
#include <stateport/c/remote_store.h>
#include <stateport/c/status.h>
#include <stateport/c/store.h>
#include <stateport/c/transfers.h>

/// Images below the device, in host memory, in files and in a store that machines share, and the calls that move them:
/// stateport::StateTiers. The conventions are in stateport/c/core.h.
#ifdef __cplusplus
extern "C" {
#endif

/// Moves states and KV blocks between an engine's stores and the tiers below them, and tells how it went. It decides
/// nothing. All its copies run one behind the other, on whatever streams its calls name. The engine orders its own work
/// on other streams. Nothing waits for the device or a file but create and destroy. A stream that captures a graph is
/// refused with STATEPORT_INVALID_STATE.
///
/// Under a request cache, one at a time:
///
///     start, plan, insert, commit, end → begin_transfers, with the transfers of the answer → enqueue all else of it
///     once a step, and while requests load → end_transfers
///
/// Without one: put, get, lookup, remove, poll.
typedef struct stateport_state_tiers stateport_state_tiers;

/// How ranks share a state or a KV block, and which part is in a store of this rank. 24 bytes for ever.
typedef struct stateport_shared_layout {
  stateport_model_layout* layout;
  stateport_shard shard;
} stateport_shared_layout;

/// Element types of the tensors of objects; STATEPORT_DEFAULT_TYPE: those of the layout. 8 bytes for ever.
typedef struct stateport_object_encoding {
  int32_t conv;       ///< stateport_element_type
  int32_t recurrent;  ///< stateport_element_type
} stateport_object_encoding;

/// A store that machines share, as a tier. Checkpoints lie there as objects that do not depend on the topology of the
/// writer: the part of some layers that rank g of a tensor-parallel group of head_groups ranks would hold. Grid and
/// model are equal for all that share the store.
typedef struct stateport_remote_options {
  size_t size;
  /// Used by no one else while the tiers exist, and without requests that are not answered.
  stateport_remote_store* store;
  const stateport_shared_layout* states;  ///< [state_count] one for each store of states
  size_t state_count;
  const stateport_shared_layout* kv;  ///< of a block; null without KV
  int32_t head_groups;                ///< a multiple of every tensor-parallel size in use; 0: 1
  int32_t layers_per_object;          ///< pipeline stages begin at multiples of it; 0: all layers
  /// Of states: the first is written, all are read. Null: one, the types of the layouts.
  const stateport_object_encoding* encodings;
  size_t encoding_count;
  uint64_t staging_bytes;  ///< host memory for objects on their way, registered with the store; 0: 256 MiB
} stateport_remote_options;

typedef struct stateport_state_tiers_options {
  size_t size;
  /// [state_count] The engine's states, a store for each group of layers: those that checkpoints lie in.
  stateport_store* const* states;
  size_t state_count;
  /// The engine's KV, a block in a slot (usually a view): each KV tensor of a layer is a tensor of kind
  /// STATEPORT_RECURRENT. Null: none.
  stateport_store* kv;
  /// Names the model: weights, revision, whatever makes states of two models differ. Must not be empty with a folder
  /// or a remote tier.
  const void* model;
  size_t model_bytes;
  /// Which part of the model's states the stores hold: layers [layer_begin, layer_end) of part `head_group` of
  /// `head_groups` equal parts of the heads. All zero: the whole.
  int32_t layer_begin;
  int32_t layer_end;
  int32_t head_group;
  int32_t head_groups;
  /// Of pinned memory, for images that stay on the host, used in whole frames (stateport_state_tiers_info). 0: none do.
  uint64_t host_bytes;
  /// Of the files: made if it is not there, for its owner alone, and the folder above it must be. Files get the
  /// folder's permissions, as far as the process's mask allows. Several processes may use one. Null: no file tier.
  const char* folder;
  uint64_t file_bytes;        ///< for images in files
  uint64_t free_floor_bytes;  ///< writes that would leave the file system less are refused
  uint64_t file_queue_bytes;  ///< of images whose write was not answered yet, and as much for reads; 0: 256 MiB
  /// Host memory beside host_bytes, for images on their way to or from a file; 0: 64 MiB. Only with a folder.
  uint64_t staging_bytes;
  size_t file_transfers_max;  ///< with this number under way, stores and copies to files are refused; 0: 4,096
  int32_t file_lanes;         ///< files that are written or read at a time; 0: 2
  const stateport_remote_options* remote;  ///< null: no remote tier
  /// Not 0: host memory is set to zero at the end, and the bytes of files as in stateport_file_tier_options. Objects of
  /// the remote tier are the store's.
  stateport_flag scrub;
} stateport_state_tiers_options;

typedef struct stateport_state_tiers_info {
  size_t size;
  size_t in_flight;  ///< transfers that poll or end_transfers has not answered, and those whose memory is in use
  uint64_t
      host_frame_bytes;  ///< host memory is cut into such frames: each holds one large image, or several small ones
  uint64_t host_bytes;   ///< in whole frames
  int64_t host_images;
  uint64_t host_image_bytes;
  uint64_t file_images;
  uint64_t file_bytes;  ///< of files, and of writes under way
  // Found when the folder was opened.
  uint64_t found_images;
  uint64_t foreign_files;        ///< other names than a tier gives; left alone
  uint64_t foreign_images;       ///< of another version, model, layout or shard; left alone
  uint64_t damaged_files;        ///< forgotten from the first header on that does not verify
  uint64_t unreadable_files;     ///< could not be read; left alone
  uint64_t dropped_temporaries;  ///< of writers that died
  // Files since then.
  uint64_t written_images;
  uint64_t written_bytes;
  uint64_t read_images;
  uint64_t read_bytes;
  double write_seconds;  ///< together, each from its first call to its last, without the time in a queue
  double read_seconds;
  // The remote tier. Sums of bytes and of seconds, from acceptance to answer.
  uint64_t remote_written_bytes;
  uint64_t remote_read_bytes;
  double remote_write_seconds;
  double remote_read_seconds;
  uint64_t remote_asked_images;
  uint64_t remote_found_images;
  uint64_t remote_removed_objects;  ///< whose content did not fit their name
  uint64_t unscrubbed;              ///< as in stateport_file_tier_info
} stateport_state_tiers_info;

/// The bytes that the image of one slot of a store with this spec takes in a tier, with header and padding.
stateport_status stateport_image_bytes(stateport_spec* spec, uint64_t* out);

/// Takes pinned memory, which may take seconds, and opens the folder. Refused: neither states nor KV, no room at all,
/// less room than an image, a folder that holds other things or may not be read and written.
stateport_status stateport_state_tiers_create(const stateport_state_tiers_options* options,
                                              stateport_state_tiers** out);
/// Waits for the device, and for requests that a shared store has begun. Other transfers that were not answered are
/// given up.
stateport_status stateport_state_tiers_destroy(stateport_state_tiers* tiers);
stateport_status stateport_state_tiers_describe(stateport_state_tiers* tiers, stateport_state_tiers_info* out);
/// Contents of the tiers, and durations of transfers, in the text format of Prometheus, as
/// stateport_request_cache_prometheus: no metric has a name that is in that text, too.
stateport_status stateport_state_tiers_prometheus(stateport_state_tiers* tiers, const char* prefix, char* text,
                                                  size_t capacity, size_t* bytes);
/// Recounts everything; STATEPORT_INTERNAL_ERROR names the first violation.
stateport_status stateport_state_tiers_check(stateport_state_tiers* tiers);

// --- Under a request cache -------------------------------------------------------------------------------------------

/// Begins the transfers of an answer of the cache, but for loads from STATEPORT_MEDIUM_ELSEWHERE. Call it before all
/// else of that answer is enqueued on this stream. Slots and blocks of the cache that the stores do not have are
/// refused. These transfers have failed then, and so have those that the cache names on their answers.
/// STATEPORT_OUT_OF_MEMORY, or INVALID_STATE for a stream that captures: nothing has begun, and the call can be made
/// again until the next call of the cache. STATEPORT_BACKEND_ERROR: the transfers are under way; do not repeat the
/// call.
stateport_status stateport_state_tiers_begin_transfers(stateport_state_tiers* tiers, void* stream,
                                                       stateport_request_cache* cache,
                                                       const stateport_transfer* transfers, size_t count);
/// Tells the cache which transfers have ended, and begins those that it names then. Call it once a step, before the
/// next chunk, when all answers of plans and commits are enqueued; also while requests wait for loads. Loads are
/// enqueued on this stream. loaded: how many requests need not wait any more; null: not wanted.
stateport_status stateport_state_tiers_end_transfers(stateport_state_tiers* tiers, void* stream,
                                                     stateport_request_cache* cache, int32_t* loaded);

/// Loads from STATEPORT_MEDIUM_ELSEWHERE that begin_transfers or end_transfers passed over, at most `capacity`, each
/// once: the engine carries them out, and tells the cache how they ended (stateport_request_cache_settle).
stateport_status stateport_state_tiers_take_loads(stateport_state_tiers* tiers, stateport_transfer* out,
                                                  size_t capacity, size_t* count);

typedef struct stateport_attached_images {
  size_t size;
  size_t attached;
  size_t removed;  ///< for which the cache had no room or no number left
  /// That are nothing of this cache: no whole blocks of it, another group, or KV with leading_blocks. Left where they
  /// are.
  size_t skipped;
} stateport_attached_images;

/// Tells a cache of all images in files, which are there from an earlier run. STATEPORT_INVALID_STATE without a file
/// tier, here or there.
stateport_status stateport_state_tiers_attach(stateport_state_tiers* tiers, void* stream,
                                              stateport_request_cache* cache, stateport_attached_images* out);

/// Exchanges records of forgotten namespaces with the remote tier, for all that use the store with this model. Begins
/// the exchange, or goes on with it, and waits for nothing: call it until status is not STATEPORT_NONE, with
/// end_transfers or poll in between; before attach and the first request, after each stateport_request_cache_forget,
/// and now and then, to learn what other machines have forgotten: no look-up of a request asks for records. With
/// several ranks the first one calls it, and the others adopt its stateport_request_cache_forgotten at the same point.
/// status: STATEPORT_TRANSFER_DONE: the store has all that the cache has forgotten, and the cache has forgotten all
/// that the store had; FAILED; NO_ROOM, of the store, or there are more than 1,024 records together. Records that were
/// read are adopted in any case. The store keeps them in two objects. If it evicts both, they are there again after the
/// next call with a cache that knows them. STATEPORT_INVALID_STATE without a remote tier.
stateport_status stateport_state_tiers_share_forgotten(stateport_state_tiers* tiers, stateport_request_cache* cache,
                                                       int32_t* status);

// --- Transfers of an engine's own ------------------------------------------------------------------------------------

/// Begins transfers in their order: of a request cache that the engine itself tells of their ends, or of its own, with
/// numbers below 2^63. Refused, and nothing has begun: a transfer that no tier here can carry out.
/// STATEPORT_INVALID_STATE where begin_transfers serves a cache. Loads from STATEPORT_MEDIUM_ELSEWHERE are passed over:
/// the engine carries them out and settles them.
stateport_status stateport_state_tiers_execute(stateport_state_tiers* tiers, void* stream,
                                               const stateport_transfer* transfers, size_t count);
/// Tells at most `capacity` transfers that have ended, each once. Makes transfers under way go on: call it in every
/// step, on the stream that reads the loaded slots. Results of begin_transfers are not told here, but to the cache.
stateport_status stateport_state_tiers_poll(stateport_state_tiers* tiers, void* stream, stateport_transfer_result* out,
                                            size_t capacity, size_t* count);

/// An image and its slot (of KV: its block) on the device. 40 bytes for ever.
typedef struct stateport_slot_image {
  stateport_image_key key;
  int32_t slot;
  int32_t reserved;  ///< 0
} stateport_slot_image;

/// Stores slots, to STATEPORT_MEDIUM_HOST, STATEPORT_MEDIUM_FILE or STATEPORT_MEDIUM_REMOTE. poll answers each: the
/// first one has the number `first`, those behind it the next ones; numbers begin at 2^63. An image that is held is not
/// stored again. Who puts images removes them: a full tier answers STATEPORT_TRANSFER_NO_ROOM, and so does one for
/// files whose staging memory or queue is full for now.
stateport_status stateport_state_tiers_put(stateport_state_tiers* tiers, void* stream,
                                           const stateport_slot_image* images, size_t count, int32_t medium,
                                           uint64_t* first);
/// Loads into slots, from host memory or, where it is not there, from a file (once its put was answered), or else from
/// the remote tier, and numbers as put does. After a load that was not STATEPORT_TRANSFER_DONE its slot holds anything.
stateport_status stateport_state_tiers_get(stateport_state_tiers* tiers, void* stream,
                                           const stateport_slot_image* images, size_t count, uint64_t* first);
/// Asks the remote tier for images, and numbers as put does: poll answers STATEPORT_TRANSFER_DONE or
/// STATEPORT_TRANSFER_GONE. STATEPORT_INVALID_STATE without one.
stateport_status stateport_state_tiers_find(stateport_state_tiers* tiers, void* stream,
                                            const stateport_image_key* images, size_t count, uint64_t* first);
/// media: [count] the fastest tier that each can be got from, or STATEPORT_NONE. The remote tier is not among them.
stateport_status stateport_state_tiers_lookup(stateport_state_tiers* tiers, const stateport_image_key* images,
                                              size_t count, int32_t* media);
/// Forgets images in host memory and files, in the order of the enqueued work. Those that are nowhere are ignored.
stateport_status stateport_state_tiers_remove(stateport_state_tiers* tiers, void* stream,
                                              const stateport_image_key* images, size_t count);
/// The keys of all images in host memory or files: at most `capacity` into `out`, and into `count` how many there are.
/// In files by tokens and then prefix.
stateport_status stateport_state_tiers_keys(stateport_state_tiers* tiers, int32_t medium, stateport_image_key* out,
                                            size_t capacity, size_t* count);
/// Copies the images in host memory that files do not hold to files: call it and poll until `left` is 0, and the next
/// run finds everything. A copy that fails is answered by poll and tried again: give up when nothing but failures come.
/// STATEPORT_INVALID_STATE without a file tier. With a request cache: stateport_request_cache_drain.
stateport_status stateport_state_tiers_drain(stateport_state_tiers* tiers, void* stream, size_t* left);

#ifdef __cplusplus
}
#endif

#endif
