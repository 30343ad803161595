// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_IMAGE_CACHE_H
#define STATEPORT_C_IMAGE_CACHE_H

#include <stateport/c/eviction.h>
#include <stateport/c/status.h>
#include <stateport/c/transfers.h>

/// Images below the device by key: stateport::ImageCache. The conventions are in stateport/c/core.h, the rules in the
/// C++ header.
#ifdef __cplusplus
extern "C" {
#endif

/// For an engine that keeps its own cache on the device: decides which tier has the image of a key, what a full tier
/// evicts, and names the transfers. Each image stands for itself. stateport_state_tiers_execute carries them out:
///
///     put, get, ask, remove, drain → execute the transfers of the plan
///     state_tiers_poll → settle → execute the transfers of the plan
///
/// Of the images of one call the first counts as used last. Images with tokens < 0, and of a content or group without
/// image bytes, are refused.
typedef struct stateport_image_cache stateport_image_cache;

typedef struct stateport_image_cache_options {
  size_t size;
  int64_t host_bytes;    ///< for images on the host; 0: no host tier
  int64_t file_bytes;    ///< for images in files; 0: no file tier
  int64_t remote_bytes;  ///< of images in the remote tier that this cache remembers; 0: no remote tier
  /// The bytes that the image of one KV block takes in a tier (stateport_image_bytes). 0: there are none.
  int64_t kv_image_bytes;
  const int64_t* state_image_bytes;  ///< [state_groups] of the state of each group of layers
  size_t state_groups;
  /// Not 0: images go to the slowest tier as soon as a faster one has them, and stay in both. 0: when the faster one
  /// evicts them, to the next one.
  stateport_flag write_through;
  /// The bytes of stores and copies under way into files at a time, and into the remote tier; more of them wait. At
  /// most as many as the mover of the bytes takes (stateport_state_tiers_options.staging_bytes). 0: 64 MiB.
  int64_t queue_bytes;
  int32_t eviction;             ///< stateport_eviction; 0: STATEPORT_EVICT_LRU. Refused: hix, gdsf, priority
  size_t images_under_way_max;  ///< that requests may wait for at a time; 0: 65,536
} stateport_image_cache_options;

/// A put, get or ask that has ended. 16 bytes for ever.
typedef struct stateport_ended_images {
  int64_t request;
  int64_t missing;  ///< put: images that no tier has; get: that were not loaded; ask: that are nowhere
} stateport_ended_images;

/// The answer of a call. The arrays are the cache's until its next call that answers a plan.
typedef struct stateport_image_plan {
  size_t size;
  int64_t request;  ///< the number of this put, get or ask; of other calls STATEPORT_NONE
  const stateport_transfer* transfers;
  size_t transfer_count;
  const stateport_ended_images* ended;
  size_t ended_count;
} stateport_image_plan;

/// Contents of one tier, and its work since the cache was made.
typedef struct stateport_image_tier_usage {
  size_t size;
  int64_t images;
  int64_t bytes;           ///< with the images that are on their way into the tier
  int64_t written_images;  ///< into the tier
  int64_t read_images;     ///< by loads
  int64_t evicted_images;  ///< left for others, with those that went to the next tier
  int64_t refused_images;  ///< found no room, or were not written
  int64_t lost_images;     ///< were missing or damaged when they were read
  int64_t asked_images;    ///< finds that were answered
  int64_t found_images;    ///< finds that were STATEPORT_TRANSFER_DONE
} stateport_image_tier_usage;

stateport_status stateport_image_cache_create(const stateport_image_cache_options* options,
                                              stateport_image_cache** out);
stateport_status stateport_image_cache_destroy(stateport_image_cache* cache);
/// Recounts everything; STATEPORT_INTERNAL_ERROR names the first violation.
stateport_status stateport_image_cache_check(stateport_image_cache* cache);

/// Stores images from places on the device (slots, or KV blocks), which must stay as they are until the request ends.
stateport_status stateport_image_cache_put(stateport_image_cache* cache, const stateport_image_key* images,
                                           const int32_t* places, size_t count, stateport_image_plan* out);
/// Loads images into places, up to the first that no tier has. A load that is not STATEPORT_TRANSFER_DONE makes its
/// tier forget the image.
stateport_status stateport_image_cache_get(stateport_image_cache* cache, const stateport_image_key* images,
                                           const int32_t* places, size_t count, stateport_image_plan* out);
/// Asks the remote tier for the images that no tier is known to have. STATEPORT_INVALID_STATE without one.
stateport_status stateport_image_cache_ask(stateport_image_cache* cache, const stateport_image_key* images,
                                           size_t count, stateport_image_plan* out);
/// Forgets images in host memory and files, pinned ones too; those on their way when they arrive.
stateport_status stateport_image_cache_remove(stateport_image_cache* cache, const stateport_image_key* images,
                                              size_t count, stateport_image_plan* out);
/// Copies images to files, or without these to the remote tier, that neither has, as far as there is room. All is
/// written when a call names nothing and nothing is under way.
stateport_status stateport_image_cache_drain(stateport_image_cache* cache, stateport_image_plan* out);
/// These transfers ended, in any order. All, or none: refused is one that is not under way or is named twice.
stateport_status stateport_image_cache_settle(stateport_image_cache* cache, const stateport_transfer_result* results,
                                              size_t count, stateport_image_plan* out);

/// leading: the number of leading images that a tier has. media: null, or [count] the fastest tier of each
/// (stateport_medium), or STATEPORT_NONE.
stateport_status stateport_image_cache_find(stateport_image_cache* cache, const stateport_image_key* images,
                                            size_t count, int32_t* media, size_t* leading);
/// A use of the images that are known.
stateport_status stateport_image_cache_touch(stateport_image_cache* cache, const stateport_image_key* images,
                                             size_t count);
/// No tier evicts these images before unpin. pinned: 0, and nothing is pinned: no tier has one of them.
stateport_status stateport_image_cache_pin(stateport_image_cache* cache, const stateport_image_key* images,
                                           size_t count, stateport_flag* pinned);
/// Undoes one pin of each image. All, or none: refused is one that is not pinned.
stateport_status stateport_image_cache_unpin(stateport_image_cache* cache, const stateport_image_key* images,
                                             size_t count);
/// The tier has these images, from before the cache was made. attached: [count] 0: there is no room for the image, and
/// it is to be removed.
stateport_status stateport_image_cache_attach(stateport_image_cache* cache, int32_t medium,
                                              const stateport_image_key* images, size_t count, uint8_t* attached);
/// Transfers that are not answered, and those that wait.
stateport_status stateport_image_cache_under_way(stateport_image_cache* cache, size_t* out);
/// medium: stateport_medium. All zero for one that is no tier.
stateport_status stateport_image_cache_usage(stateport_image_cache* cache, int32_t medium,
                                             stateport_image_tier_usage* out);

#ifdef __cplusplus
}
#endif

#endif
