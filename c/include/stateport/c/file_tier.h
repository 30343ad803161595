// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_FILE_TIER_H
#define STATEPORT_C_FILE_TIER_H

#include <stateport/c/spec.h>
#include <stateport/c/status.h>
#include <stateport/c/transfers.h>

/// Images in files, from and to memory of the host that an engine has already: stateport::FileTier. No stream, no
/// runtime. Contents of the device go through stateport/c/state_tiers.h, whose files are the same.
#ifdef __cplusplus
extern "C" {
#endif

/// Images in files of one folder. It decides nothing: a write that does not fit is refused. Threads of its own carry
/// out requests, and poll answers them; no call waits for the file system but create, wait and destroy. A write is
/// answered STATEPORT_TRANSFER_DONE when it survives a crash, a read when key, layout and all checksums fit. Several
/// processes may use one folder.
typedef struct stateport_file_tier stateport_file_tier;

typedef struct stateport_file_tier_options {
  size_t size;
  /// Made if it is not there, for its owner alone; the folder above it must be. Empty, or a folder of images. Files get
  /// the folder's permissions, as far as the process's mask allows.
  const char* folder;
  uint64_t file_bytes;        ///< for images
  uint64_t free_floor_bytes;  ///< writes that would leave the file system less are answered STATEPORT_TRANSFER_NO_ROOM
  uint64_t queue_bytes;       ///< of images whose write was not answered yet, and as much for reads; 0: 256 MiB
  stateport_spec* const* states;  ///< [state_count] the contents of images of states, a spec for each group of layers
  size_t state_count;
  stateport_spec* kv;  ///< the content of the image of a KV block; null: no KV
  const void* model;   ///< as in stateport_state_tiers_options. Must not be empty
  size_t model_bytes;
  int32_t layer_begin;
  int32_t layer_end;
  int32_t head_group;
  int32_t head_groups;
  int32_t lanes;  ///< files that are written or read at a time; 0: 2
  /// Not 0: bytes are overwritten before they are given back, and no padding of the caller's is written. File systems
  /// that write elsewhere and disks that level wear keep old copies: encrypt the disk.
  stateport_flag scrub;
} stateport_file_tier_options;

typedef struct stateport_file_tier_info {
  size_t size;
  uint64_t images;
  uint64_t file_bytes;         ///< of files, and of writes under way
  uint64_t write_queue_bytes;  ///< of requests that are not answered
  uint64_t read_queue_bytes;
  uint64_t found_images;  ///< these six: found when the folder was opened, as in stateport_state_tiers_info
  uint64_t foreign_files;
  uint64_t foreign_images;
  uint64_t damaged_files;
  uint64_t unreadable_files;
  uint64_t dropped_temporaries;
  uint64_t written_images;
  uint64_t written_bytes;
  uint64_t read_images;
  uint64_t read_bytes;
  double write_seconds;  ///< together, each from its first call to its last, without the time in a queue
  double read_seconds;
  uint64_t unscrubbed;  ///< how often bytes were given back that `scrub` means and that could not be overwritten
} stateport_file_tier_info;

/// The layout of the image of a state of one group, or of a KV block. A header comes first; section i, at a multiple of
/// 4 KiB, has the bytes of tensor i of the spec without gaps.
typedef struct stateport_image_layout {
  size_t size;
  uint64_t image_bytes;
  uint64_t header_bytes;
  size_t sections;
} stateport_image_layout;

stateport_status stateport_file_tier_create(const stateport_file_tier_options* options, stateport_file_tier** out);
/// Requests that were not answered are abandoned: their memory is not touched any more.
stateport_status stateport_file_tier_destroy(stateport_file_tier* tier);
stateport_status stateport_file_tier_describe(stateport_file_tier* tier, stateport_file_tier_info* out);
stateport_status stateport_file_tier_layout(stateport_file_tier* tier, int32_t content, int32_t group,
                                            stateport_image_layout* out);
/// Where section `index` begins, from the beginning of the image, and its bytes without padding.
stateport_status stateport_file_tier_section(stateport_file_tier* tier, int32_t content, int32_t group, size_t index,
                                             uint64_t* offset, uint64_t* bytes);

/// Writes images into one new file, and answers once, by `id`. images: [count] image_bytes each, of which the header's
/// are not read; they must stay as they are until the answer. If all are held, none is written again; else all are.
/// STATEPORT_NO_CAPACITY: they do not fit into the folder's bytes or the queue now, and there is no answer.
stateport_status stateport_file_tier_write(stateport_file_tier* tier, uint64_t id, const stateport_image_key* keys,
                                           const void* const* images, size_t count);
/// Reads an image, with its header, into `image`: image_bytes, at a multiple of 4 KiB without a copy. They hold
/// anything until the answer is STATEPORT_TRANSFER_DONE. STATEPORT_NO_CAPACITY: the queue is full, and there is no
/// answer.
stateport_status stateport_file_tier_read(stateport_file_tier* tier, uint64_t id, const stateport_image_key* key,
                                          void* image, size_t bytes);
/// Answers, in the order in which requests ended.
stateport_status stateport_file_tier_poll(stateport_file_tier* tier, stateport_transfer_result* out, size_t capacity,
                                          size_t* count);
/// Waits until every request has an answer, every removal is done, and all of them survive a crash of the machine: no
/// later process finds those images. (Where the file system makes no holes, a removed image is gone when all images of
/// its file are.)
stateport_status stateport_file_tier_wait(stateport_file_tier* tier);
/// held: [count] not 0: the image can be read.
stateport_status stateport_file_tier_lookup(stateport_file_tier* tier, const stateport_image_key* keys, size_t count,
                                            uint8_t* held);
/// Forgets images, also those that are being written. Reads that were accepted still find them.
stateport_status stateport_file_tier_remove(stateport_file_tier* tier, const stateport_image_key* keys, size_t count);
/// The keys of all images, by tokens and then prefix: at most `capacity` into `out`, and into `count` how many there
/// are.
stateport_status stateport_file_tier_keys(stateport_file_tier* tier, stateport_image_key* out, size_t capacity,
                                          size_t* count);
/// Recounts everything; STATEPORT_INTERNAL_ERROR names the first violation.
stateport_status stateport_file_tier_check(stateport_file_tier* tier);

#ifdef __cplusplus
}
#endif

#endif
