// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/event.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/core/pool/copy_plan.hpp>
#include <stateport/kernels/state_store.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace stateport::tiers {

/// Numbers the routes of copies: from the slots of the device, or the places of images in host memory, to those of
/// another kind of memory. Objects are those of a remote tier. Routes that read the targets of others have larger
/// numbers.
struct CopyRoutes {
  std::size_t kinds = 0;
  std::size_t encodings = 1;

  [[nodiscard]] constexpr std::size_t to_host(std::size_t kind) const noexcept { return kind; }
  [[nodiscard]] constexpr std::size_t to_objects(std::size_t kind) const noexcept { return kinds + kind; }
  [[nodiscard]] constexpr std::size_t host_to_objects(std::size_t kind) const noexcept { return 2 * kinds + kind; }
  [[nodiscard]] constexpr std::size_t to_device(std::size_t kind) const noexcept { return 3 * kinds + kind; }
  [[nodiscard]] constexpr std::size_t from_objects(std::size_t kind, std::size_t encoding) const noexcept {
    return (4 + encoding) * kinds + kind;
  }
  [[nodiscard]] constexpr std::size_t count() const noexcept { return (4 + encodings) * kinds; }
  [[nodiscard]] constexpr std::size_t kind(std::size_t route) const noexcept { return route % kinds; }
  /// Whether a route writes slots of the device.
  [[nodiscard]] constexpr bool loads(std::size_t route) const noexcept { return route >= 3 * kinds; }
};

/// Copies between the device and images in host memory, one behind the other, whatever streams they are enqueued on:
/// work that is enqueued later sees the writes of earlier copies, and writes only after they have read. Tests put a
/// lane in its place whose copies are late.
class CopyLane {
 public:
  virtual ~CopyLane() = default;

  /// Enqueues copies of one route (CopyRoutes). No destination is there twice. Throws BackendError, OutOfMemory or
  /// std::bad_alloc; then only some of them may be enqueued.
  virtual void copy(const Stream& stream, std::size_t route, CopyPlan plan) = 0;
  /// Makes room for this number of marks. Throws BackendError or std::bad_alloc; nothing has changed then.
  virtual void prepare_marks(std::size_t /*count*/) {}
  /// Marks the point behind all copies so far, to be called before copies go to another stream. Marks are numbered
  /// from 1. Throws BackendError, and std::bad_alloc without prepare_marks(); no point is marked then.
  virtual void mark(const Stream& stream) = 0;
  /// The last mark that is reached. Waits for nothing. Throws BackendError.
  [[nodiscard]] virtual std::uint64_t reached() = 0;
};

/// Enqueues the copies of a route.
using RouteCopier = std::function<void(const Stream&, CopyPlan)>;

/// The copies of a SlotCopier or a Resharder.
template <class Copier>
[[nodiscard]] RouteCopier route_of(Copier copier) {
  return [copier = std::make_shared<Copier>(std::move(copier))](const Stream& stream, CopyPlan plan) {
    copier->copy_slots(stream, plan);
  };
}

/// The lane of the build's device. Allocates only while more marks are on their way than ever before.
class DeviceLane final : public CopyLane {
 public:
  explicit DeviceLane(std::vector<RouteCopier> copiers);

  void copy(const Stream& stream, std::size_t route, CopyPlan plan) override;
  void prepare_marks(std::size_t count) override;
  void mark(const Stream& stream) override;
  [[nodiscard]] std::uint64_t reached() override;

 private:
  /// Later work on `stream` runs behind the last mark.
  void follow(const Stream& stream);
  [[nodiscard]] Event& event_of(std::uint64_t mark) noexcept { return events_[mark % events_.size()]; }

  std::vector<RouteCopier> copiers_;
  std::vector<Event> events_;  ///< of marks reached_ + 1 to last_, and of last_ when that is reached, too
  std::uint64_t last_ = 0;
  std::uint64_t reached_ = 0;
  std::optional<Stream> stream_;  ///< of the copies so far; compared, and not used otherwise: it may have ended
};

/// The parts of a lane.
struct LaneParts {
  CopyRoutes routes;
  std::vector<RouteCopier> copiers;                ///< [routes]; empty for routes that are never used
  std::span<const StateStore* const> device = {};  ///< [kinds] valid while the lane is made, their memory longer
  std::span<const StateStore> host = {};           ///< [kinds] views of the images; none without room on the host
};

/// Makes the lane through which the copies of a StateTiers go.
class CopyLaneMaker {
 public:
  virtual ~CopyLaneMaker() = default;
  [[nodiscard]] virtual std::unique_ptr<CopyLane> make(LaneParts parts) const {
    return std::make_unique<DeviceLane>(std::move(parts.copiers));
  }
};

}  // namespace stateport::tiers
