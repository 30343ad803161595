// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_TRANSFERS_H
#define STATEPORT_C_TRANSFERS_H

#include <stateport/c/status.h>

/// The tiers below the device, and transfers between them and the device: stateport::TierOptions,
/// stateport::TransferPlan. Plain data.
#ifdef __cplusplus
extern "C" {
#endif

/// Where cached content lies: on the device, or in a tier, from the fastest to the slowest.
typedef enum stateport_medium {
  STATEPORT_MEDIUM_DEVICE = 0,
  STATEPORT_MEDIUM_HOST,
  STATEPORT_MEDIUM_FILE,
  STATEPORT_MEDIUM_REMOTE,
  STATEPORT_MEDIUM_ELSEWHERE  ///< where the engine keeps KV by its own means
} stateport_medium;

typedef enum stateport_content { STATEPORT_KV_BLOCK = 0, STATEPORT_STATE } stateport_content;

/// Names one image: the KV of a block of tokens, or the state of one group of layers at one position. Two images of one
/// model and layout with equal keys hold the same. 32 bytes for ever.
typedef struct stateport_image_key {
  uint64_t prefix[2];  ///< of all tokens up to `tokens`, with their namespace: see stateport_hash_blocks
  int64_t tokens;      ///< from the start of the prompt to the state, or to the end of the block
  int32_t content;     ///< stateport_content
  int32_t group;       ///< of a state; 0 for KV
} stateport_image_key;

typedef enum stateport_transfer_kind {
  STATEPORT_TRANSFER_STORE = 0,  ///< device to a tier. `place` is read in the order of the engine's stream
  STATEPORT_TRANSFER_LOAD,       ///< a tier to the device. `place` is written in the order of the engine's stream
  STATEPORT_TRANSFER_COPY,       ///< a tier to a lower one; both have it then
  STATEPORT_TRANSFER_DROP,       ///< a tier forgets the image, once no load or copy reads it any more. Not answered
  STATEPORT_TRANSFER_FIND  ///< asks whether the tier `from` has the image: DONE, it has; GONE, it has not; else not
                           ///< known
} stateport_transfer_kind;

/// One image, and where it is to move. 64 bytes for ever.
typedef struct stateport_transfer {
  uint64_t id;      ///< from 1, in the order in which transfers were decided
  int32_t kind;     ///< stateport_transfer_kind
  int32_t from;     ///< stateport_medium
  int32_t to;       ///< of a drop and a find: the same as `from`
  int32_t place;    ///< store, load: the state's slot in the store of its group, or the number of the KV block
  int64_t request;  ///< load, find: the request that waits for it, or for which it was asked; else STATEPORT_NONE
  stateport_image_key image;
} stateport_transfer;

/// Transfers in the order in which they take effect: a later store may use the room of a drop.
typedef struct stateport_transfer_plan {
  size_t size;
  const stateport_transfer* transfers;
  size_t count;
} stateport_transfer_plan;

/// How a transfer ended. Everything but STATEPORT_TRANSFER_DONE leaves the destination without the image.
typedef enum stateport_transfer_status {
  STATEPORT_TRANSFER_DONE = 0,        ///< load: enqueued, or written, before all that is enqueued later
  STATEPORT_TRANSFER_NO_ROOM,         ///< the tier is full, or its queue is
  STATEPORT_TRANSFER_GONE,            ///< the tier has no such image (any more)
  STATEPORT_TRANSFER_DAMAGED,         ///< a checksum does not fit
  STATEPORT_TRANSFER_FOREIGN_LAYOUT,  ///< another model, layout, type or version
  STATEPORT_TRANSFER_WRONG_POSITION,  ///< the image names other tokens
  STATEPORT_TRANSFER_FAILED           ///< the machine failed
} stateport_transfer_status;

enum { STATEPORT_TRANSFER_STATUSES_MAX = 16 };  ///< room for all of them, and for those that may come

/// 16 bytes for ever.
typedef struct stateport_transfer_result {
  uint64_t id;
  int32_t status;    ///< stateport_transfer_status
  int32_t reserved;  ///< 0
} stateport_transfer_result;

/// How fast loads are, and how fast the engine computes a prompt. 0: not known.
typedef struct stateport_tier_speeds {
  size_t size;
  double host_bytes_per_s;
  double file_bytes_per_s;
  double tokens_per_s;
  double remote_bytes_per_s;
  double remote_latency_s;  ///< of one round trip: a load from the remote tier takes it once. 0: none
} stateport_tier_speeds;

/// The tiers of a request cache below the device. Without room on the host, in files and in the remote tier there are
/// no tiers.
typedef struct stateport_tier_options {
  size_t size;
  int64_t host_bytes;  ///< for images on the host; 0: no host tier
  int64_t file_bytes;  ///< for images in files; 0: no file tier
  /// The bytes that the image of one state takes in a tier, all groups together, and those of the KV of one block
  /// (stateport_image_bytes). 0: those that `eviction` of the cache names.
  int64_t state_image_bytes;
  int64_t kv_image_bytes;
  int64_t queue_bytes;  ///< of stores and copies under way; one that does not fit is dropped and counted. 0: no limit
  /// Not 0: checkpoints go to the slowest tier as they are made, not when the device drops them.
  stateport_flag write_through;
  /// See stateport_tier_speeds. A hit below the device is taken if loading it takes less time than computing it; every
  /// such hit is taken unless all that it needs is known.
  double host_bytes_per_s;
  double file_bytes_per_s;
  double tokens_per_s;
  /// If set, the engine keeps the KV that leaves the device by its own means, and tiers hold states alone. start asks
  /// how many of these blocks, from the first one on, can be loaded: prefixes [count, 2] as in stateport_image_key,
  /// those before the first are on the device. The request then loads them from STATEPORT_MEDIUM_ELSEWHERE: by the
  /// engine, which settles it. A callback, as in stateport/c/core.h.
  int64_t (*leading_blocks)(const uint64_t* prefixes, size_t count, void* context);
  void* leading_blocks_context;
  /// Of images in the remote tier that this cache remembers; 0: no remote tier. Others store there, too, and contents
  /// that this cache forgets stay there. start asks it for contents that may be there (STATEPORT_TRANSFER_FIND), states
  /// first, then KV.
  int64_t remote_bytes;
  /// Images of states that a request asks for, at most. 0: 4096; STATEPORT_NONE: none. A request that ends does not
  /// wait for its answers; while more of these are missing than max_requests requests ask for at a time, nothing is
  /// asked for.
  int32_t max_finds;
  double remote_bytes_per_s;
  double remote_latency_s;
} stateport_tier_options;

/// Contents of one tier, and its work since the cache was made.
typedef struct stateport_tier_usage {
  size_t size;
  int64_t states;
  int64_t kv_blocks;
  int64_t bytes;          ///< with what is on its way into the tier
  int64_t bytes_written;  ///< into the tier
  int64_t bytes_read;     ///< by loads and copies
  int64_t loads;          ///< requests that loaded something from it, from no slower tier
  int64_t hit_tokens;     ///< that these did not compute
  int64_t evicted_states;
  int64_t dropped_states;  ///< came to the tier and were not worth their place
  int64_t refused_images;  ///< found no room or no place in the queue, or were not written
  int64_t lost_images;     ///< that a load or a copy did not find as they should be
  /// By the speeds: the time of computing the hit tokens, less the time of the loads for these requests. Of loads whose
  /// speeds are not all known: 0.
  double saved_s;
  int64_t asked_images;  ///< finds that were answered
  int64_t found_images;  ///< finds that were STATEPORT_TRANSFER_DONE
  // Transfers that were decided and have not ended, and their bytes. A copy is read from one tier, written to another.
  int64_t reads;
  int64_t read_bytes;
  int64_t writes;
  int64_t write_bytes;
  int64_t finds;
  // Transfers that ended, by stateport_transfer_status.
  int64_t ended_reads[STATEPORT_TRANSFER_STATUSES_MAX];
  int64_t ended_writes[STATEPORT_TRANSFER_STATUSES_MAX];
  int64_t ended_finds[STATEPORT_TRANSFER_STATUSES_MAX];
} stateport_tier_usage;

#ifdef __cplusplus
}
#endif

#endif
