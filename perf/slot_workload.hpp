// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/device_resource.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace stateport::perf {

/// Memory of one workload's states: larger than any cache.
inline constexpr std::size_t pool_bytes = std::size_t{2} << 30;

/// Slots of `spec` that fit into pool_bytes.
[[nodiscard]] std::int32_t slots_in_pool(const StateSpec& spec);

/// All slots of a store, shuffled, for plans over slots that no recent plan touched.
[[nodiscard]] std::vector<std::int32_t> shuffled_slots(const StateStore& store);

/// Fills all tensors of a store with random bits, whatever memory they lie in.
void fill_randomly(const StateStore& store);

struct Chunk {
  std::byte* dst;
  const std::byte* src;
  std::size_t bytes;
};

/// A store of random data and, per round, a plan that copies `requests` whole states over slots that no recent round
/// touched. A round's chunks are the same copies, one per state and tensor.
class CopyWorkload {
 public:
  /// Over as many slots as `bytes` hold. Throws InvalidArgument if those are fewer than two a request.
  CopyWorkload(const StateSpec& spec, std::int32_t requests, std::size_t bytes = pool_bytes);
  /// In memory of `resource`, which must outlive the workload.
  CopyWorkload(MemoryResource& resource, const StateSpec& spec, std::int32_t requests, std::size_t bytes);

  void run(int round, const Stream& stream = Stream::default_stream()) { copier_.copy_slots(stream, plan(round)); }
  /// Rounds before slots are used again.
  [[nodiscard]] int rounds() const { return static_cast<int>(plans_.size()); }
  [[nodiscard]] const StateStore& store() const { return store_; }
  [[nodiscard]] const std::vector<SlotCopy>& plan(int round) const {
    return plans_[static_cast<std::size_t>(round) % plans_.size()];
  }
  [[nodiscard]] std::vector<Chunk> chunks(int round) const;
  /// Read + written by one round.
  [[nodiscard]] double moved_bytes() const;
  /// Poisons a round's destinations, copies, and says whether every byte arrived.
  [[nodiscard]] bool copies_exactly();
  /// The same for another way to copy `chunks(0)`.
  [[nodiscard]] bool copies_exactly(const std::function<void()>& copy) const;

 private:
  StateStore store_;
  SlotCopier copier_{store_};
  std::vector<std::vector<SlotCopy>> plans_;
};

}  // namespace stateport::perf
