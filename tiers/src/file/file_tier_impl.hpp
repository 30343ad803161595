// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/file_tier.hpp>

#include "file/file_calls.hpp"
#include "file/image_directory.hpp"
#include "file/image_folder.hpp"
#include "file/image_io.hpp"
#include "host/ready_queue.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace stateport {

/// Calls to the system go through `calls`, which must outlive it.
class FileTier::Impl {
 public:
  Impl(const FileTierOptions& options, std::vector<ImageLayout> layouts, FileCalls& calls);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl();

  [[nodiscard]] bool write(std::uint64_t ticket, std::span<const FileImage> images);
  [[nodiscard]] bool read(std::uint64_t ticket, const ImageKey& key, std::span<std::byte> image);
  bool remove(const ImageKey& key);
  std::size_t lookup(std::span<const ImageKey> keys, std::span<bool> held) const;
  [[nodiscard]] std::vector<ImageKey> keys() const;
  std::size_t poll(std::span<Completion> completions);
  void wait_idle();
  [[nodiscard]] const FileTierOptions& options() const noexcept { return options_; }
  [[nodiscard]] const FolderFindings& findings() const noexcept { return findings_; }
  [[nodiscard]] FileTierStatistics statistics() const;
  void check_invariants() const;

 private:
  struct Write {
    std::uint64_t ticket = 0;
    std::vector<ImageToWrite> images;
    std::vector<bool> removed;  ///< by image: while it was being written
    std::uint64_t bytes = 0;
    std::uint64_t number = 0;
    ImageDirectory::NewFile file;
  };
  struct Read {
    std::uint64_t ticket = 0;
    ImageToRead source;
    FileIndex file = -1;
    std::byte* image = nullptr;
  };
  using Tidy = ImageDirectory::Tidy;

  void open_folder();
  [[nodiscard]] const ImageLayout& layout_of(const ImageKey& key) const;

  void start_lanes();
  void stop_lanes() noexcept;
  /// A lane: one thread that carries out requests, one after the other.
  void run_lane(ImageIo& io);
  void carry_out(ImageIo& io, std::list<Write>::iterator write, std::unique_lock<std::mutex>& lock);
  void carry_out(ImageIo& io, const Read& read, std::unique_lock<std::mutex>& lock);
  void carry_out(ImageIo& io, const Tidy& tidy, std::unique_lock<std::mutex>& lock);

  // With the lock held:
  void publish(Write& write) noexcept;
  void add_image(FileIndex file, const ImageKey& key, const ImageLayout& layout, std::uint64_t offset) noexcept;
  void forget(const Read& read, TransferStatus status);
  void tidy_if_due(FileIndex file) noexcept;
  /// For one request more than those that are not answered.
  void reserve_answer();
  void answer(const Completion& completion) noexcept;
  [[nodiscard]] bool idle() const;

  FileTierOptions options_;
  std::vector<ImageLayout> layouts_;
  ImageFolder folder_;
  FolderFindings findings_;

  std::mutex synchronising_;  ///< locked before mutex_
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::atomic<bool> stopping_ = false;  ///< set with the lock held; read without it by transfers
  ImageDirectory directory_;
  std::list<Write> writes_;  ///< accepted and not answered; those from next_write_ on have not begun
  std::list<Write>::iterator next_write_ = writes_.end();
  std::list<Read> reads_;
  std::size_t images_to_write_ = 0;
  tiers::ReadyQueue<Tidy> tidies_;
  tiers::ReadyQueue<Completion> completions_;
  bool has_unlinked_ = false;  ///< files, since the folder was synchronised
  std::int32_t busy_lanes_ = 0;
  std::uint64_t next_number_ = 0;
  FileTierStatistics statistics_;              ///< without the members that are computed when asked for
  std::vector<std::unique_ptr<ImageIo>> ios_;  ///< by lane
  std::vector<std::thread> lanes_;
};

}  // namespace stateport
