// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../commit_workload.hpp"
#include "vendor_calls.hpp"

#include <cstdint>
#include <vector>

/// commit_step as one writes it for CUDA or HIP alone, for states whose elements lie together in scratch memory as in
/// the live slot: a block for each (tensor, request) looks at the request's step, and copies what that left.
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

constexpr int commit_threads = 256;

__global__ void __launch_bounds__(commit_threads)
    twin_commit(const TwinScratch* tensors, const std::int32_t* last_step, const std::int32_t* live_slot) {
  const TwinScratch tensor = tensors[blockIdx.x];
  const std::int32_t request = static_cast<std::int32_t>(blockIdx.y), step = last_step[request];
  if (step < 0) return;
  const auto* const src = reinterpret_cast<const uint4*>(tensor.scratch + request * tensor.request_stride_bytes +
                                                         step * tensor.step_stride_bytes);
  auto* const dst = reinterpret_cast<uint4*>(tensor.live + live_slot[request] * tensor.slot_stride_bytes);
  std::uint32_t i = threadIdx.x;
  for (; i + 3 * commit_threads < tensor.words; i += 4 * commit_threads) {
    const uint4 first = src[i], second = src[i + commit_threads];
    const uint4 third = src[i + 2 * commit_threads], fourth = src[i + 3 * commit_threads];
    dst[i] = first, dst[i + commit_threads] = second;
    dst[i + 2 * commit_threads] = third, dst[i + 3 * commit_threads] = fourth;
  }
  for (; i < tensor.words; i += commit_threads) dst[i] = src[i];
}

}  // namespace stateport::perf
