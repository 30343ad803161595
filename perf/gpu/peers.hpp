// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>

#include "../commit_workload.hpp"
#include "../slot_workload.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// Peers of this library's kernels: other ways to move the same bytes. One source for each vendor.
namespace stateport::perf {

/// Two ranges of `words` times 16 bytes, on the device or in pinned memory.
struct EqualRanges {
  const std::byte* left;
  const std::byte* right;
  std::uint32_t words;
};
/// Enqueues a pass over both sides of all ranges that adds the number of 16-byte words that differ to *different. All
/// arrays lie on the device.
void count_differences(const Stream& stream, const EqualRanges* ranges, std::uint32_t count, std::uint32_t* different);

/// One way to copy a list of chunks, its tables on the device already.
struct PeerCopy {
  std::string name;
  std::function<void(const Stream&)> run;
};

/// Those that the toolkit has: a loop of async memcpy ("memcpy_loop"), the batched call ("memcpy_batch"), the vendor's
/// library ("cub"), and the library's own kernel written without Kokkos ("twin"). Chunks start at multiples of 16
/// bytes.
[[nodiscard]] std::vector<PeerCopy> peer_copies(const std::vector<Chunk>& chunks);

/// A masked gather and scatter of the same states, written without Kokkos (twin_commit.hpp).
[[nodiscard]] PeerCopy peer_commit(const CommitWorkload& workload);

}  // namespace stateport::perf
