// SPDX-License-Identifier: Apache-2.0
#include "states/peer_copy.hpp"

#include <stateport/backends/device.hpp>
#include <stateport/backends/internal/execution_space.hpp>
#include <stateport/backends/transfer.hpp>

#include <Kokkos_Core.hpp>
#include <string.h>

#include <chrono>

namespace stateport::replay {
namespace {

/// One memcpy per tensor and state, by the threads that our copies use.
struct CopyChunks {
  const PeerCopy::Chunk* chunks;
  int chunk_count;
  std::size_t image_bytes;
  std::byte* ring;
  std::byte* fixed;
  bool from_ring;

  KOKKOS_FUNCTION void operator()(int work) const {
    const PeerCopy::Chunk chunk = chunks[work % chunk_count];
    std::byte* const here = ring + static_cast<std::size_t>(work / chunk_count) * image_bytes + chunk.offset_bytes;
    std::byte* const there = fixed + chunk.offset_bytes;
    memcpy(from_ring ? there : here, from_ring ? here : there, chunk.bytes);
  }
};

}  // namespace

PeerCopy::PeerCopy(MemoryResource& resource, const StateSpec& spec, std::size_t images, const Stream& stream)
    : image_bytes_(spec.slot_bytes()), images_(images), memory_(resource, (images + 1) * spec.slot_bytes()) {
  std::size_t offset = 0;
  for (const StateTensorSpec& tensor : spec.tensors()) {
    chunks_.push_back({offset, tensor.natural_bytes()});
    offset += tensor.natural_bytes();
  }
  fill_bytes(stream, memory_.data(), std::byte{1}, memory_.size_bytes());  // pages exist before anything is timed
  stream.synchronize();
}

double PeerCopy::run(const Stream& stream, std::size_t states, bool from_ring) {
  if (states == 0 || states > images_) return 0;
  if (next_image_ + states > images_) next_image_ = 0;
  auto* const memory = memory_.as<std::byte>();
  std::byte* const ring = memory + next_image_ * image_bytes_;
  std::byte* const fixed = memory + images_ * image_bytes_;
  next_image_ += states;

  const auto begin = std::chrono::steady_clock::now();
  if (backend_info().host_reads_device_memory) {
    const auto chunk_count = static_cast<int>(chunks_.size());
    const Kokkos::RangePolicy<ExecutionSpace, Kokkos::Schedule<Kokkos::Dynamic>> range(
        execution_space(stream), 0, static_cast<int>(states) * chunk_count, Kokkos::ChunkSize(1));
    Kokkos::parallel_for("stateport::replay::memcpy", range,
                         CopyChunks{chunks_.data(), chunk_count, image_bytes_, ring, fixed, from_ring});
  } else {
    for (std::size_t image = 0; image < states; ++image) {
      std::byte* const here = ring + image * image_bytes_;
      copy_bytes(stream, from_ring ? fixed : here, from_ring ? here : fixed, image_bytes_);
    }
  }
  stream.synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace stateport::replay
