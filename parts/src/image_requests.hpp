// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/error.hpp>
#include <stateport/core/model/ids.hpp>
#include <stateport/parts/image_types.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace stateport::detail {

/// The requests of an ImageCache, and how many of their images are not answered yet. All calls are O(1). Nothing
/// allocates after construction.
class ImageRequests {
 public:
  /// Every request but the one that is being opened has an image that is not answered.
  explicit ImageRequests(std::size_t images_max) : images_max_(images_max) {
    rows_.reserve(images_max + 1);
    free_.reserve(images_max + 1);
    ended_.reserve(images_max + 1);
    taken_.reserve(images_max + 1);
  }

  /// Ends no earlier than close().
  [[nodiscard]] RequestId open() noexcept {
    auto at = static_cast<std::uint32_t>(rows_.size());
    if (free_.empty()) {
      rows_.push_back({.id = RequestId{static_cast<RequestId::Value>(at)}});
    } else {
      at = free_.back();
      free_.pop_back();
    }
    rows_[at].left = 1;
    rows_[at].missing = 0;
    return rows_[at].id;
  }
  void close(RequestId request) noexcept { end_part(request, true); }

  /// False: the request cannot wait for one image more.
  [[nodiscard]] bool has_room() const noexcept { return images_ < images_max_; }
  /// The request waits for one image more. Precondition: has_room().
  void add_image(RequestId request) noexcept {
    ++rows_[request.index()].left;
    ++images_;
  }
  void end_image(RequestId request, bool good) noexcept {
    --images_;
    end_part(request, good);
  }
  /// These images of the request do not come.
  void miss(RequestId request, std::size_t images = 1) noexcept {
    rows_[request.index()].missing += static_cast<std::int64_t>(images);
  }

  /// Those that have ended since the last call. Valid until the next one.
  [[nodiscard]] std::span<const EndedImages> take_ended() noexcept {
    std::swap(ended_, taken_);
    ended_.clear();
    return taken_;
  }

  /// Throws std::logic_error naming the first violation. O(requests).
  void check_invariants() const {
    std::int64_t left = 0;
    std::size_t open = 0;
    for (const Row& row : rows_) {
      left += row.left;
      open += row.left > 0 ? 1 : 0;
    }
    require_invariant(left == static_cast<std::int64_t>(images_), "ImageRequests", "an image is lost");
    require_invariant(open + free_.size() == rows_.size(), "ImageRequests", "a request is lost");
  }

 private:
  struct Row {
    RequestId id;
    std::int64_t left = 0;  ///< images that are not answered, and 1 until close()
    std::int64_t missing = 0;
  };

  void end_part(RequestId request, bool good) noexcept {
    Row& row = rows_[request.index()];
    row.missing += good ? 0 : 1;
    if (--row.left > 0) return;
    ended_.push_back({row.id, row.missing});
    free_.push_back(static_cast<std::uint32_t>(request.index()));
    row.id = row.id.next();
  }

  std::size_t images_max_;
  std::size_t images_ = 0;
  std::vector<Row> rows_;
  std::vector<std::uint32_t> free_;
  std::vector<EndedImages> ended_;
  std::vector<EndedImages> taken_;
};

}  // namespace stateport::detail
