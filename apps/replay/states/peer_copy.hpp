// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/memory_resource.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/core/model/state_spec.hpp>

#include <cstddef>
#include <vector>

namespace stateport::replay {

/// The copies that ours are compared with: memcpy of the same sizes. In an OpenMP build one std::memcpy per state
/// tensor, spread over the same threads; on a GPU the runtime's own device-to-device copy of one piece as large as the
/// state.
class PeerCopy {
 public:
  /// A state tensor's place in the contiguous image of a state.
  struct Chunk {
    std::size_t offset_bytes;
    std::size_t bytes;
  };

  /// `images` states of rotating memory, so that its memory is as far from the caches as that of our copies.
  PeerCopy(MemoryResource& resource, const StateSpec& spec, std::size_t images, const Stream& stream);

  /// Seconds to copy `states` states from the ring to one image that stays (a restore); 0 if the ring is too small.
  [[nodiscard]] double restore_seconds(const Stream& stream, std::size_t states) { return run(stream, states, true); }
  /// The same from that image to the ring (a commit).
  [[nodiscard]] double commit_seconds(const Stream& stream, std::size_t states) { return run(stream, states, false); }

 private:
  [[nodiscard]] double run(const Stream& stream, std::size_t states, bool from_ring);

  std::vector<Chunk> chunks_;  ///< one per state tensor
  std::size_t image_bytes_;
  std::size_t images_;
  std::size_t next_image_ = 0;
  Buffer memory_;  ///< images_ images and one that stays
};

}  // namespace stateport::replay
