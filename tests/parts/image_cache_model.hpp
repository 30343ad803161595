// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/parts/image_cache.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

namespace stateport::test {

/// Images by number: the first half is KV, the second half states of two groups.
[[nodiscard]] ImageKey image_key(std::size_t image, std::size_t images);

/// The rules of ImageCache over plain lists. Every sum is counted anew. No bound but that of images under way.
class ImageCacheModel {
 public:
  struct Plan {
    std::vector<Transfer> transfers;
    std::vector<EndedImages> ended;
  };

  ImageCacheModel(const ImageCacheOptions& options, std::size_t images);

  /// `request` is the number that the cache gave.
  Plan put(const std::vector<std::size_t>& images, const std::vector<std::int32_t>& places, RequestId request);
  Plan get(const std::vector<std::size_t>& images, const std::vector<std::int32_t>& places, RequestId request);
  Plan ask(const std::vector<std::size_t>& images, RequestId request);
  Plan remove(const std::vector<std::size_t>& images);
  Plan settle(const std::vector<TransferResult>& results);
  bool pin(const std::vector<std::size_t>& images);
  /// As often as they are named.
  [[nodiscard]] bool are_pinned(const std::vector<std::size_t>& images) const;
  void unpin(const std::vector<std::size_t>& images);
  void touch(const std::vector<std::size_t>& images);
  bool attach(Medium medium, std::size_t image);
  [[nodiscard]] std::optional<Medium> where(std::size_t image) const;

  [[nodiscard]] std::size_t under_way() const;
  /// The images in this tier, and their bytes with those that are coming.
  [[nodiscard]] std::int64_t images_in(Medium medium) const;
  [[nodiscard]] std::int64_t bytes_in(Medium medium) const;
  [[nodiscard]] std::vector<TransferId> unanswered() const;

 private:
  enum class Task { none, store, copy, move };
  struct Image {
    std::vector<bool> in;  ///< by tier
    Task task = Task::none;
    bool has_waited = false;
    bool waits = false;
    bool unwanted = false;
    std::size_t from = 0;
    std::size_t to = 0;
    std::int32_t place = -1;
    RequestId request;
    std::uint64_t used = 0;
    std::uint64_t made = 0;
    std::int64_t hits = 0;
    int pins = 0;
    int reads = 0;
  };
  struct Tier {
    Medium medium;
    std::int64_t capacity;
    std::int64_t gap = 0;
    bool gap_grew = false;
    bool writes_wait = false;
    std::deque<std::size_t> queue;
  };
  struct UnderWay {
    Transfer transfer;
    std::size_t image;
  };
  struct Request {
    std::size_t left = 1;
    std::int64_t missing = 0;
  };

  [[nodiscard]] std::int64_t bytes_of(std::size_t image) const;
  [[nodiscard]] bool is_somewhere(std::size_t image) const;
  [[nodiscard]] bool is_known(std::size_t image) const;
  [[nodiscard]] std::size_t waiting_for() const;
  [[nodiscard]] std::int64_t held(std::size_t tier, bool without_leaving) const;
  [[nodiscard]] bool is_busy(std::size_t tier) const;
  [[nodiscard]] std::size_t loads(std::size_t tier) const;
  /// The images that the tier may evict, in this order.
  [[nodiscard]] std::vector<std::size_t> candidates(std::size_t tier) const;
  [[nodiscard]] std::vector<std::int64_t> rank(std::size_t image) const;
  [[nodiscard]] std::size_t tier_of(Medium medium) const;

  void use(std::size_t image);
  void part(RequestId request, bool good);
  void begin(std::size_t image, Task task, std::size_t from, std::size_t to);
  void leave(std::size_t image, std::size_t tier);
  /// 1: now, 0: later, -1: none.
  int make_room(std::size_t tier, std::size_t image);
  int turn(std::size_t tier, std::size_t image);
  void refuse(std::size_t tier, std::size_t image);
  void end_task(std::size_t image, bool arrived);
  void arrived(const UnderWay& part, TransferStatus status);
  void name(Transfer transfer, std::size_t image);
  void forget_unknown();
  Plan run(RequestId request = {});

  ImageCacheOptions options_;
  std::size_t device_;
  std::vector<Tier> tiers_;
  std::vector<Image> images_;
  std::map<TransferId, UnderWay> under_way_;
  std::map<RequestId, Request> requests_;
  Plan plan_;
  TransferId last_ = 0;
  std::uint64_t tick_ = 0;
};

}  // namespace stateport::test
