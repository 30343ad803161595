// SPDX-License-Identifier: Apache-2.0
#include "roof_kernels.hpp"

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/internal/device_calls.hpp>
#include <stateport/backends/internal/upload.hpp>

#include "roof_copy.hpp"
#include "vendor_calls.hpp"
#ifdef __CUDACC__
#include "cuda_bulk_copy.hpp"
#endif

#include <algorithm>
#include <memory>
#include <string>

namespace stateport::perf {
namespace {

constexpr std::size_t tile_bytes_large = std::size_t{32} << 10;

/// Tiles of at most `tile_bytes`, those of a chunk nearly equal, in device memory.
struct Tiles {
  Tiles(const std::vector<Chunk>& chunks, std::size_t tile_bytes) {
    std::vector<RoofTile> tiles;
    for (const Chunk& chunk : chunks) {
      const std::size_t words = chunk.bytes / sizeof(uint4), pieces = (chunk.bytes + tile_bytes - 1) / tile_bytes;
      const std::size_t each = (words + pieces - 1) / pieces;
      for (std::size_t at = 0; at < words; at += each)
        tiles.push_back({reinterpret_cast<uint4*>(chunk.dst) + at, reinterpret_cast<const uint4*>(chunk.src) + at,
                         static_cast<std::uint32_t>(std::min(each, words - at))});
    }
    count = static_cast<std::uint32_t>(tiles.size());
    table = detail::upload(resource, tiles);
  }
  DeviceResource resource;
  Buffer table;
  std::uint32_t count = 0;
};

using Kernel = void (*)(const RoofTile*, std::uint32_t);

PeerCopy shape(const std::string& name, Kernel kernel, const std::shared_ptr<Tiles>& tiles, int threads, int blocks,
               std::uint32_t shared_bytes = 0) {
  const auto resident = static_cast<std::uint32_t>(blocks * detail::compute_units());
  return {name, [=](const Stream& stream) {
            kernel<<<std::min(resident, tiles->count), threads, shared_bytes, native(stream)>>>(
                tiles->table.as<RoofTile>(), tiles->count);
            check_launch();
          }};
}

#ifdef __CUDACC__
/// Where the device has the engine.
void add_bulk_copies(std::vector<PeerCopy>& shapes, const std::shared_ptr<Tiles>& tiles) {
  static_assert(tile_bytes_large <= stage_bytes);
  int device = 0, major = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  if (major < 9) return;
  const auto add = [&](const char* name, Kernel kernel, int blocks, std::uint32_t stages) {
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(stages * stage_bytes)));
    shapes.push_back(shape(name, kernel, tiles, 32, blocks, stages * stage_bytes));
  };
  add("bulk_3", bulk_copy<3>, 2, 3);
  add("bulk_6", bulk_copy<6>, 1, 6);
}
#else
void add_bulk_copies(std::vector<PeerCopy>&, const std::shared_ptr<Tiles>&) {}
#endif

}  // namespace

std::vector<PeerCopy> roof_copies(const std::vector<Chunk>& chunks) {
  const auto large = std::make_shared<Tiles>(chunks, tile_bytes_large);
  const auto small = std::make_shared<Tiles>(chunks, tile_bytes_large / 2);
  std::vector<PeerCopy> shapes = {shape("256x4_twice_the_grid", roof_copy<Cached, 256, 4, 4>, large, 256, 8),
                                  shape("256x4", roof_copy<Cached, 256, 4, 4>, large, 256, 4),
                                  shape("256x4_small_tiles", roof_copy<Cached, 256, 4, 4>, small, 256, 4),
                                  shape("256x8", roof_copy<Cached, 256, 2, 8>, large, 256, 2),
                                  shape("512x4", roof_copy<Cached, 512, 2, 4>, large, 512, 2),
                                  shape("512x8", roof_copy<Cached, 512, 1, 8>, large, 512, 1),
                                  shape("1024x2", roof_copy<Cached, 1024, 2, 2>, large, 1024, 2),
                                  shape("streaming_256x4", roof_copy<PastCaches, 256, 4, 4>, large, 256, 4),
                                  shape("streaming_256x8", roof_copy<PastCaches, 256, 2, 8>, large, 256, 2)};
  add_bulk_copies(shapes, large);
  return shapes;
}

}  // namespace stateport::perf
