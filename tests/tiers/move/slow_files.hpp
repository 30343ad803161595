// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "heap_counter.hpp"
#include "move/lower_tier.hpp"
#include "transfer_keys.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <new>
#include <span>
#include <utility>
#include <vector>

namespace stateport::test {

/// A lower tier that works when the test says so, and a record of what happened.
class SlowFiles final : public tiers::LowerTier {
 public:
  using Verify = std::function<bool(const ImageKey&, std::span<const std::byte>)>;
  using Seal = std::function<void(const ImageKey&, std::span<std::byte>)>;
  SlowFiles(Verify verify, Seal seal) : verify_(std::move(verify)), seal_(std::move(seal)) {}

  bool write(std::span<const Image> images, std::uint64_t ticket) override {
    allocate();
    const SparedAllocations own;
    if (requests_.size() >= queue_max || images.size() > images_max) return false;
    ++write_requests;
    largest_file = std::max(largest_file, images.size());
    requests_.push_back({.ticket = ticket, .images = {images.begin(), images.end()}});
    return true;
  }
  bool read(const ImageKey& key, std::span<std::byte> image, std::uint64_t ticket) override {
    allocate();
    const SparedAllocations own;
    if (requests_.size() >= queue_max) return false;
    requests_.push_back({.ticket = ticket, .images = {{key, {}}}, .into = image});
    return true;
  }
  bool find(const ImageKey& key, std::uint64_t ticket) override {
    allocate();
    const SparedAllocations own;
    if (requests_.size() >= queue_max) return false;
    requests_.push_back({.ticket = ticket, .images = {{key, {}}}, .asks = true});
    return true;
  }
  bool remove(const ImageKey& key) override {
    allocate();
    const SparedAllocations own;
    for (Request& request : requests_) {
      const bool names_it = std::ranges::find(request.images, key, &Image::key) != request.images.end();
      if (names_it && request.into.empty() && !request.asks) request.forgotten.push_back(key);
      if (names_it && !request.into.empty() && request.kept.empty() && held.contains(key)) request.kept = held[key];
    }
    held.erase(key);
    return true;
  }
  std::size_t poll(std::span<Completion> completions) override {
    allocate();
    const SparedAllocations own;
    const std::size_t count = std::min(completions.size(), done_.size());
    std::copy_n(done_.begin(), count, completions.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }

  /// Carries out request `i` of those that wait.
  void finish(std::size_t i, TransferStatus status = TransferStatus::done) {
    Request request = std::move(requests_[i]);
    requests_.erase(requests_.begin() + static_cast<std::ptrdiff_t>(i));
    if (request.asks)
      status = status == TransferStatus::done && !held.contains(request.images[0].key) ? TransferStatus::gone : status;
    else if (!request.into.empty())
      status = finish_read(request, status);
    else
      finish_write(request, status);
    done_.push_back({.ticket = request.ticket, .status = status});
  }
  void finish_all() {
    while (!requests_.empty()) finish(0);
  }
  [[nodiscard]] std::size_t waiting() const { return requests_.size(); }

  std::map<ImageKey, std::vector<std::byte>, KeyOrder> held;
  std::map<ImageKey, std::deque<TransferStatus>, KeyOrder> read_answers;
  std::size_t queue_max = SIZE_MAX;
  std::size_t images_max = SIZE_MAX;  ///< of one file
  bool allocates = false;             ///< every call, before anything else
  int wrong_images = 0;               ///< that came with other bytes than their keys say
  int write_requests = 0;
  std::size_t largest_file = 0;

 private:
  struct Request {
    std::uint64_t ticket;
    std::vector<Image> images;
    std::span<std::byte> into = {};
    bool asks = false;
    std::vector<ImageKey> forgotten = {};  ///< of a write: removed since
    std::vector<std::byte> kept = {};      ///< of a read: what was removed since
  };
  void allocate() const {
    if (allocates) ::operator delete(::operator new(1));
  }
  TransferStatus finish_read(const Request& request, TransferStatus status) {
    const ImageKey& key = request.images[0].key;
    const auto found = held.find(key);
    const std::vector<std::byte>& bytes = !request.kept.empty() || found == held.end() ? request.kept : found->second;
    if (status == TransferStatus::done && bytes.empty()) status = TransferStatus::gone;
    if (status == TransferStatus::done)
      std::ranges::copy(bytes, request.into.begin());
    else
      std::ranges::fill(request.into, std::byte{0xEE});
    read_answers[key].push_back(status);
    return status;
  }
  void finish_write(const Request& request, TransferStatus status) {
    for (const Image& image : request.images) {
      if (!verify_(image.key, image.bytes)) ++wrong_images;
      if (status != TransferStatus::done || std::ranges::find(request.forgotten, image.key) != request.forgotten.end())
        continue;
      // A file has a header of its own.
      std::vector<std::byte>& bytes = held[image.key];
      bytes.assign(image.bytes.begin(), image.bytes.end());
      seal_(image.key, bytes);
    }
  }

  Verify verify_;
  Seal seal_;
  std::vector<Request> requests_;
  std::deque<Completion> done_;
};

}  // namespace stateport::test
