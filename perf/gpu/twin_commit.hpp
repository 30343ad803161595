// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../commit_workload.hpp"
#include "twin_copy.hpp"
#include "vendor_calls.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

/// commit_step as one writes it for CUDA or HIP alone, for states whose elements lie together in scratch memory as in
/// the live slot: a block for each (tile, tensor, request) looks at the request's step, and copies the states that it
/// left.
namespace stateport::perf {

struct TwinScratch {
  const std::byte* scratch;
  std::byte* live;
  std::int64_t request_stride_bytes, step_stride_bytes, slot_stride_bytes;
  std::uint32_t words;
};

inline std::vector<TwinScratch> twin_scratch(const CommitWorkload& workload) {
  std::vector<TwinScratch> tensors;
  for (std::size_t i = 0; i < workload.scratch().size(); ++i) {
    const StepScratch& scratch = workload.scratch()[i];
    const StateTensorView& live = workload.live().tensors()[i];
    tensors.push_back({scratch.base, live.base, scratch.request_stride_bytes, scratch.step_stride_bytes,
                       live.slot_stride_bytes, static_cast<std::uint32_t>(live.spec.natural_bytes() / sizeof(uint4))});
  }
  return tensors;
}

/// Blocks for tiles, tensors and requests.
inline dim3 twin_commit_blocks(const std::vector<TwinScratch>& tensors, std::int32_t requests) {
  std::uint32_t words = 0;
  for (const TwinScratch& tensor : tensors) words = std::max(words, tensor.words);
  return dim3((words + 2 * twin_threads - 1) / (2 * twin_threads), static_cast<unsigned>(tensors.size()),
              static_cast<unsigned>(requests));
}

__global__ void __launch_bounds__(twin_threads)
    twin_commit(const TwinScratch* tensors, const std::int32_t* last_step, const std::int32_t* live_slot) {
  const TwinScratch tensor = tensors[blockIdx.y];
  const std::uint32_t first = blockIdx.x * 2 * twin_threads;
  const std::int32_t request = static_cast<std::int32_t>(blockIdx.z), step = last_step[request];
  if (step < 0 || first >= tensor.words) return;
  const auto* const src = reinterpret_cast<const uint4*>(tensor.scratch + request * tensor.request_stride_bytes +
                                                         step * tensor.step_stride_bytes);
  auto* const dst = reinterpret_cast<uint4*>(tensor.live + live_slot[request] * tensor.slot_stride_bytes);
  twin_words(dst + first, src + first, tensor.words - first);
}

}  // namespace stateport::perf
