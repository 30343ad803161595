// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tier/transfer_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stateport::soak {

/// Faults of the tiers of all engines.
struct FaultCounts {
  std::int64_t failed_transfers = 0;
  std::int64_t damaged_images = 0;
  std::int64_t vanished_images = 0;
  std::int64_t store_absences = 0;
};

/// Carries out the transfers of one engine.
class Mover {
 public:
  Mover() = default;
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;
  virtual ~Mover() = default;

  virtual void take(TransferPlan transfers) = 0;
  /// Appends some of the answers that are there; with `all` it waits for the others and appends all.
  virtual void poll(std::vector<TransferResult>& results, bool all) = 0;
  [[nodiscard]] virtual std::size_t under_way() const = 0;
  /// Images that a starting engine finds in files, in any order.
  [[nodiscard]] virtual std::vector<ImageKey> found() = 0;
  /// Removes an image that was found and that the cache does not take.
  virtual void remove(const ImageKey& image) = 0;
  /// Something below the device breaks, vanishes, goes away or comes back.
  virtual void strike() = 0;
  /// Images that the tier holds. Not of the remote one.
  [[nodiscard]] virtual std::int64_t images(Medium medium) const = 0;
  virtual void check_invariants() const = 0;
};

}  // namespace stateport::soak
