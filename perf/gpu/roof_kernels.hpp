// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "peers.hpp"

#include <cstdint>
#include <vector>

/// Shapes of copy kernels, to find the one that comes nearest to the speed of a GPU's memory: threads of a block,
/// 16-byte loads before the first store, blocks on a multiprocessor, bytes of a tile, hints to the caches, and (CUDA
/// from sm_90 on) the engine that copies in bulk through shared memory. For CUDA and HIP.
namespace stateport::perf {

/// The shapes for this device over the same chunks, and each one's name. Chunks start at multiples of 16 bytes.
[[nodiscard]] std::vector<PeerCopy> roof_copies(const std::vector<Chunk>& chunks);

}  // namespace stateport::perf
