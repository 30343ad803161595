// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/event.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/core/pool/copy_plan.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace stateport::tiers {

/// Copies between the device and images in host memory, one behind the other, whatever streams they are enqueued on:
/// what is enqueued later sees what the copies before wrote, and writes only after they have read. Tests put a lane in
/// its place whose copies are late.
class CopyLane {
 public:
  virtual ~CopyLane() = default;

  /// Enqueue copies of images of one kind: slot of the device, place in host memory. No destination is there twice.
  /// Throw BackendError; nothing is enqueued then.
  virtual void to_host(const Stream& stream, std::size_t kind, CopyPlan plan) = 0;
  virtual void to_device(const Stream& stream, std::size_t kind, CopyPlan plan) = 0;
  /// Marks the point behind all copies so far, to be called before copies go to another stream. Marks are numbered
  /// from 1. Throws BackendError; no point is marked then.
  virtual void mark(const Stream& stream) = 0;
  /// The last mark that is reached. Waits for nothing. Throws BackendError.
  [[nodiscard]] virtual std::uint64_t reached() = 0;
};

/// The lane of the build's device. Allocates only while more marks are on their way than ever before.
class DeviceLane final : public CopyLane {
 public:
  /// device[k]: the states of kind k. host[k]: a view of the images of kind k, with a place as slot. Their memory must
  /// outlive the lane. Throws as SlotCopier.
  DeviceLane(std::span<const StateStore* const> device, std::span<const StateStore> host);

  void to_host(const Stream& stream, std::size_t kind, CopyPlan plan) override;
  void to_device(const Stream& stream, std::size_t kind, CopyPlan plan) override;
  void mark(const Stream& stream) override;
  [[nodiscard]] std::uint64_t reached() override;

 private:
  /// What goes to `stream` runs behind the last mark.
  void follow(const Stream& stream);
  [[nodiscard]] Event& event_of(std::uint64_t mark) noexcept { return events_[mark % events_.size()]; }

  std::vector<SlotCopier> to_host_;
  std::vector<SlotCopier> to_device_;
  std::vector<Event> events_;  ///< of marks reached_ + 1 to last_, and of last_ when that is reached, too
  std::uint64_t last_ = 0;
  std::uint64_t reached_ = 0;
  std::optional<Stream> stream_;  ///< of the copies so far; compared, and not used otherwise: it may have ended
};

/// Makes the lane through which the copies of a StateTiers go.
class CopyLaneMaker {
 public:
  virtual ~CopyLaneMaker() = default;
  /// device[k] are the states of kind k, host[k] is a view of its images. Their memory is there until the lane goes;
  /// the spans, and the views in `host`, are not.
  [[nodiscard]] virtual std::unique_ptr<CopyLane> make(std::span<const StateStore* const> device,
                                                       std::span<const StateStore> host) const {
    return std::make_unique<DeviceLane>(device, host);
  }
};

}  // namespace stateport::tiers
