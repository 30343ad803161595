// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/error.hpp>

#include "heap_counter.hpp"
#include "move/copy_lane.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

namespace stateport::test {

/// A stream whose work is done when the test says so.
class LateLane final : public tiers::CopyLane {
 public:
  LateLane(std::unique_ptr<tiers::CopyLane> lane, const tiers::CopyRoutes& routes)
      : lane_(std::move(lane)), routes_(routes) {}

  void copy(const Stream& stream, std::size_t route, CopyPlan plan) override {
    if (routes_.loads(route) ? refuse_loads : refuse_stores) {
      if (without_memory) throw std::bad_alloc();
      throw BackendError("copy", "refused by the test");
    }
    const SparedAllocations own;
    ++launches;
    lost_copies += copied_on_ && *copied_on_ != stream;
    copied_on_ = stream;
    enqueue([this, stream, route, copies = std::vector(plan.begin(), plan.end())] {
      lane_->copy(stream, route, copies);
      stream.synchronize();
    });
  }
  /// As one whose room is never there yet.
  void prepare_marks(std::size_t) override { ::operator delete(::operator new(1)); }
  void mark(const Stream&) override {
    const SparedAllocations own;
    if (refuse_marks) throw BackendError("mark", "refused by the test");
    copied_on_.reset();
    enqueue([this, mark = ++marks_] { reached_ = mark; });
  }
  std::uint64_t reached() override { return lies ? marks_ : reached_; }

  /// Work of the engine on the same stream.
  void enqueue(std::function<void()> work) { work_.push_back(std::move(work)); }
  /// Does the first `count` pieces of work.
  void advance(std::size_t count = SIZE_MAX) {
    for (; count > 0 && !work_.empty(); --count) {
      work_.front()();
      work_.pop_front();
    }
  }
  [[nodiscard]] std::size_t waiting() const { return work_.size(); }

  bool refuse_stores = false;
  bool refuse_loads = false;
  bool refuse_marks = false;
  bool without_memory = false;  ///< is why copies are refused
  bool lies = false;            ///< says that copies are done which are not
  int launches = 0;
  int lost_copies = 0;  ///< on another stream than copies before it that have no mark

 private:
  std::unique_ptr<tiers::CopyLane> lane_;
  tiers::CopyRoutes routes_;
  std::deque<std::function<void()>> work_;
  std::uint64_t marks_ = 0;
  std::uint64_t reached_ = 0;
  std::optional<Stream> copied_on_;  ///< since the last mark
};

}  // namespace stateport::test
