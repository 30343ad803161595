// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tier/transfer_plan.hpp>
#include <stateport/tiers/completion.hpp>
#include <stateport/tiers/image.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace stateport {

class FileCalls;

struct FileTierOptions {
  /// Made if it is not there, for its owner alone; the folder above it must be. Empty, or a folder of images. Files get
  /// the folder's permissions, as far as the process's mask allows: states tell what users said.
  std::string folder;
  std::uint64_t capacity_bytes = 0;
  /// Writes that would leave the file system fewer free bytes are refused.
  std::uint64_t free_floor_bytes = 0;
  /// Of images whose write was accepted and not yet answered; as much again for reads.
  std::size_t queue_bytes = std::size_t{256} << 20;
  /// Files that are written or read at a time. Each has a thread for the bytes and one for their checksums.
  std::int32_t lanes = 2;
  /// Where tenants are not trusted: bytes are overwritten and synchronised before they are given back, by a hole or
  /// with their file, and nothing but sections and headers is written. Bytes that cannot be overwritten are given back
  /// and counted (FileTierStatistics::unscrubbed). Images that are not removed stay, also at the end of the tier. File
  /// systems that write elsewhere (copy on write, journals of data, snapshots) and disks that level wear keep old
  /// copies: encrypt the disk. Another process that reads an image while it is overwritten finds it damaged.
  bool scrub = false;
};

/// An image to write. `image`: image_bytes() of the layout that holds the key, of which the header's are not read.
struct FileImage {
  ImageKey key;
  const std::byte* image = nullptr;
};

/// Images found when the folder was opened.
struct FolderFindings {
  std::uint64_t images = 0;               ///< that the tier holds now
  std::uint64_t foreign_files = 0;        ///< other names than a tier gives; left alone
  std::uint64_t foreign_images = 0;       ///< of another version, model, layout or shard; left alone
  std::uint64_t damaged_files = 0;        ///< forgotten from the first header on that does not verify
  std::uint64_t unreadable_files = 0;     ///< could not be read; left alone
  std::uint64_t dropped_temporaries = 0;  ///< of writers that died
};

struct FileTierStatistics {
  std::uint64_t images = 0;
  std::uint64_t held_bytes = 0;  ///< of files, and of accepted writes
  std::uint64_t write_queue_bytes = 0;
  std::uint64_t read_queue_bytes = 0;
  std::uint64_t refused_writes = 0;  ///< requests that were not accepted: capacity or queue
  std::uint64_t refused_reads = 0;
  std::uint64_t written_images = 0;
  std::uint64_t written_bytes = 0;
  std::uint64_t read_images = 0;
  std::uint64_t read_bytes = 0;
  double write_seconds = 0;  ///< sum over writes, from the first call on the file to the last
  double read_seconds = 0;
  std::uint64_t removed_images = 0;  ///< by remove()
  /// How often bytes were given back that FileTierOptions::scrub means and that could not be overwritten: the file
  /// system refused, or the file has another name, under which they stay. Holds those of opening the folder, too.
  std::uint64_t unscrubbed = 0;
  /// Accepted requests by their answer, indexed by TransferStatus.
  std::array<std::uint64_t, transfer_status_count> write_answers = {};
  std::array<std::uint64_t, transfer_status_count> read_answers = {};
};

/// Images in files of one folder. The caller decides which images to keep; a write that does not fit is refused.
///
/// Requests are carried out by threads of the tier and answered by poll(). No call waits for the file system, but for
/// opening, wait_idle and the destructor. Any thread may call anything at any time. Every call takes one lock, which is
/// never held during input or output.
///
/// Durable. A write is answered `done` when its images survive a crash: they are written under a temporary name,
/// synchronised, renamed, and the folder is synchronised. Until then no reader sees them; a crash loses only writes
/// without an answer. O_DIRECT is used where the file system has it.
///
/// Verified. A read is answered `done` when header, key and the checksums of all sections fit. An image that does not
/// verify is answered by its reason and forgotten, and its bytes are freed if it is damaged.
///
/// Space. The images of one request are one file. A removed image's bytes are given back at once by a hole in its file,
/// and the file goes with its last image. Where the file system makes no holes, the bytes go with the file. Files of
/// foreign images stay, and do not count. A folder that holds more than the capacity when it is opened keeps it, and
/// writes are refused until enough is removed.
///
/// Several processes, and several tiers of one, may use one folder; each writer holds a lock, so that the next one that
/// opens the folder can tell the temporaries of the dead. A tier sees the images that were there when it opened, and
/// those that it wrote. An image that another process removed is answered `gone`. The capacity is that of one tier; the
/// floor of free space holds for all. No rule depends on a clock or on the times of files.
///
/// Memory. A call that runs out of it throws std::bad_alloc, and has changed nothing; opening may leave an empty folder
/// of images. A request for which a thread of the tier has no memory is answered `failed`, and leaves no file. Removals
/// need none.
///
/// A folder of a file system that does not synchronise, as tmpfs, survives a crash of the process alone.
class FileTier {
 public:
  /// Opens the folder: reads the headers of all images (several threads, 10,000 in less than a second). `layouts`: of
  /// the images that the tier may hold, one for each content and group. Throws InvalidArgument: no layout, two for one
  /// content and group, a capacity or queue smaller than an image, lanes not in [1, 64]; a folder that is not ours (no
  /// folder, holds other things and no images, another version), or may not be read and written. Throws BackendError
  /// if the file system fails.
  FileTier(const FileTierOptions& options, std::vector<ImageLayout> layouts);
  FileTier(FileTier&&) noexcept;
  FileTier& operator=(FileTier&&) noexcept;
  /// Removals are carried out. Requests that were accepted and not answered are abandoned: nothing of them is left in
  /// the folder, or all. The caller's memory is not touched any more.
  ~FileTier();

  /// Writes images into one new file, O(images). The memory must stay as it is until the answer. False, and counted: it
  /// does not fit into the capacity or the queue; there is no answer then. If the tier holds all of the images, none is
  /// written again; else all are, and replace those that it held. Answers: done, no_room (disk full, or the floor of
  /// free space), failed. All images or none. Throws InvalidArgument: no images, null memory, a key that no layout
  /// holds, negative tokens.
  [[nodiscard]] bool write(std::uint64_t ticket, std::span<const FileImage> images);
  /// Reads an image into `image`: image_bytes() of its layout, header included; the bytes are undefined until the
  /// answer `done`. Memory at a multiple of 4 KiB is read into directly. False, and counted: the queue is full; there
  /// is no answer then. Answers: done, gone, damaged, foreign_layout, wrong_position, failed. O(1). Throws
  /// InvalidArgument as write, and for memory of another size.
  [[nodiscard]] bool read(std::uint64_t ticket, const ImageKey& key, std::span<std::byte> image);
  /// Forgets an image; reads that were accepted still find it. Returns whether it was held, or was being written: then
  /// it is forgotten as soon as it is there. Its bytes do not count any more. O(1), and O(images being written).
  bool remove(const ImageKey& key);

  /// Sets `held[i]` to whether key i can be read, and returns how many can. O(keys). Throws InvalidArgument for another
  /// size.
  std::size_t lookup(std::span<const ImageKey> keys, std::span<bool> held) const;
  /// Of all images that can be read, by tokens and then prefix, KV before states. O(n log n).
  [[nodiscard]] std::vector<ImageKey> keys() const;

  /// Takes answers, in the order in which requests ended. Returns how many were written to `completions`.
  std::size_t poll(std::span<Completion> completions);
  /// Waits until every request has an answer, every removal is done, and all of them survive a crash of the machine:
  /// no later process finds those images. (Where the file system makes no holes, a removed image is gone when all
  /// images of its file are.) Throws BackendError if removals cannot be synchronised; the next call tries again.
  /// O(files).
  void wait_idle() const;

  [[nodiscard]] const FileTierOptions& options() const noexcept;
  /// Images found when the tier was opened.
  [[nodiscard]] const FolderFindings& findings() const noexcept;
  [[nodiscard]] FileTierStatistics statistics() const;
  /// Recounts files, images and bytes. Throws std::logic_error naming the first that is wrong. O(images).
  void check_invariants() const;

 private:
  class Impl;
  friend FileTier make_file_tier(const FileTierOptions&, std::vector<ImageLayout>, FileCalls&);
  explicit FileTier(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stateport
