// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/device_resource.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "move/copy_lane.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

namespace stateport::engine {

/// A lane on which stores are late, as on a busy stream. A store reads its source at once, but its bytes reach host
/// memory at a later advance(), or before the next load. Host memory that is read before the mark is reached has its
/// older content.
class LateLane final : public tiers::CopyLane {
 public:
  explicit LateLane(tiers::LaneParts parts);

  void copy(const Stream& stream, std::size_t route, CopyPlan plan) override;
  void mark(const Stream& stream) override;
  [[nodiscard]] std::uint64_t reached() override { return late_->reached(); }

  /// Carries out the first `count` waiting pieces.
  void advance(std::size_t count = SIZE_MAX);
  [[nodiscard]] std::size_t waiting() const noexcept { return work_.size(); }

 private:
  /// `read` holds the bytes that stores have read; its slots are the places to which they go.
  struct Kind {
    Kind(const StateStore& device, const StateStore& host);
    DeviceResource memory;
    StateStore read;
    SlotCopier copier;
  };
  std::deque<Kind> kinds_;
  tiers::CopyRoutes routes_;
  std::unique_ptr<tiers::DeviceLane> late_;  ///< to the host from `read`, and with the marks
  std::deque<std::function<void()>> work_;
};

/// Makes late lanes, and tells where the last one is.
class LateLaneMaker final : public tiers::CopyLaneMaker {
 public:
  [[nodiscard]] std::unique_ptr<tiers::CopyLane> make(tiers::LaneParts parts) const override {
    auto lane = std::make_unique<LateLane>(std::move(parts));
    *last_ = lane.get();
    return lane;
  }
  explicit LateLaneMaker(LateLane*& last) : last_(&last) {}

 private:
  LateLane** last_;
};

}  // namespace stateport::engine
