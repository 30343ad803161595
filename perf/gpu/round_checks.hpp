// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/kernels/state_store.hpp>

#include "peers.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stateport::perf {

/// One range of memory that a timed run writes. Starts and sizes are multiples of 16 bytes.
struct WrittenRange {
  std::byte* dst = nullptr;
  const std::byte* expected = nullptr;  ///< content that it must have after the run
  std::size_t bytes = 0;
  const std::byte* before = nullptr;  ///< content that it must have before the run; nullptr: poison
};

/// The ranges that the runs of each round write. Compared on the device, so that every timed run can be checked.
class RoundChecks {
 public:
  explicit RoundChecks(std::vector<std::vector<WrittenRange>> rounds);
  RoundChecks(const RoundChecks&) = delete;
  RoundChecks& operator=(const RoundChecks&) = delete;

  /// Enqueues the work that brings the round's ranges to their state before a run.
  void prepare(const Stream& stream, int round) const;
  /// Says whether every byte of the round's ranges is as expected; waits for the stream.
  [[nodiscard]] bool hold(const Stream& stream, int round);

 private:
  struct Round {
    std::vector<WrittenRange> ranges;
    std::uint32_t pieces;
    Buffer device_pieces;
  };
  [[nodiscard]] std::size_t index(int round) const { return static_cast<std::size_t>(round) % rounds_.size(); }

  DeviceResource resource_;
  std::vector<Round> rounds_;
  Buffer different_;
};

/// The destinations of copies.
[[nodiscard]] std::vector<WrittenRange> destinations(const std::vector<Chunk>& chunks);
/// `slots` slots of every tensor, from `first` on. The stores have the same slots and tensors, in layer-major layout.
[[nodiscard]] std::vector<WrittenRange> slot_ranges(const StateStore& written, const StateStore& expected,
                                                    const StateStore* before, std::int32_t first, std::int32_t slots);

/// Drives everything out of the device's caches by reading memory that nothing else touches: reads leave no lines
/// behind that a timed run would have to write back.
class CacheSweep {
 public:
  /// `bytes`: a multiple of 16, four times the last-level cache or more.
  explicit CacheSweep(std::size_t bytes);
  void run(const Stream& stream);

 private:
  DeviceResource resource_;
  std::size_t bytes_;
  Buffer memory_;
  Buffer device_pieces_;
  std::uint32_t pieces_ = 0;
};

}  // namespace stateport::perf
