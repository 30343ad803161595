// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/image.hpp>

#include "image/running_checksum.hpp"

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace stateport {

/// The checksums of the sections of one image whose bytes come from front to back.
class SectionSums {
 public:
  void start(const ImageLayout& layout, const std::byte* image);
  /// The first `bytes` of the image are there.
  void advance(std::size_t bytes) noexcept;
  /// After advance(image_bytes()), one per tensor.
  [[nodiscard]] std::span<const Checksum> sums() const noexcept { return sums_; }

 private:
  const ImageLayout* layout_ = nullptr;
  const std::byte* image_ = nullptr;
  std::size_t summed_bytes_ = 0;  ///< of the section that is being summed: sums_.size()
  RunningChecksum running_;
  std::vector<Checksum> sums_;
};

/// The same on a thread of its own, so that the checksums are ready soon after the last byte. Used by one other thread.
class SummingThread {
 public:
  SummingThread();
  SummingThread(const SummingThread&) = delete;
  SummingThread& operator=(const SummingThread&) = delete;
  ~SummingThread();

  /// After finish() of the image before.
  void start(const ImageLayout& layout, const std::byte* image);
  void advance(std::size_t bytes);
  /// Waits until the bytes that advance() named are summed; the image is not read any more then. Returns the checksums
  /// of all sections that were there, valid until the next start().
  std::span<const Checksum> finish();

 private:
  void run();

  SectionSums sums_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t ready_bytes_ = 0;
  std::size_t summed_bytes_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace stateport
