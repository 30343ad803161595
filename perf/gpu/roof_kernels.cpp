// SPDX-License-Identifier: Apache-2.0
#include "roof_kernels.hpp"

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/internal/device_calls.hpp>
#include <stateport/backends/internal/upload.hpp>
#include <stateport/backends/transfer.hpp>

#include "roof_copy.hpp"
#include "vendor_calls.hpp"
#ifdef __CUDACC__
#include "cuda_bulk_copy.hpp"
#endif

#include <algorithm>
#include <map>
#include <memory>
#include <string>

namespace stateport::perf {
namespace {

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
    claimed = Buffer(resource, sizeof(std::uint32_t));
  }
  DeviceResource resource;
  Buffer table, claimed;
  std::uint32_t count = 0;
};

using Kernel = void (*)(const RoofTile*, std::uint32_t, std::uint32_t*);

/// The shapes of kernels over the same chunks.
class Shapes {
 public:
  explicit Shapes(const std::vector<Chunk>& chunks) : chunks_(chunks) {}

  /// `blocks` on a multiprocessor; 0: one for each tile.
  void add(const std::string& name, Kernel kernel, std::size_t tile_kib, int threads, int blocks,
           std::uint32_t shared_bytes = 0) {
    auto& tiles = tiles_[tile_kib];
    if (!tiles) tiles = std::make_shared<Tiles>(chunks_, tile_kib << 10);
    const auto grid = blocks == 0
                          ? tiles->count
                          : std::min(static_cast<std::uint32_t>(blocks * detail::compute_units()), tiles->count);
    copies.push_back({name, [=, tiles = tiles](const Stream& stream) {
                        fill_bytes(stream, tiles->claimed.data(), std::byte{0}, tiles->claimed.size_bytes());
                        kernel<<<grid, threads, shared_bytes, native(stream)>>>(
                            tiles->table.as<RoofTile>(), tiles->count, tiles->claimed.as<std::uint32_t>());
                        check_launch();
                      }});
  }
  template <int threads, int loads>
  void add_once() {
    add("once_" + std::to_string(threads) + "x" + std::to_string(loads), roof_once<Cached, threads, loads>,
        threads * loads * sizeof(uint4) >> 10, threads, 0);
  }
  template <int threads, int blocks, int loads>
  void add_resident(std::size_t tile_kib) {
    const std::string shape = std::to_string(threads) + "x" + std::to_string(loads) + "_on_" + std::to_string(blocks) +
                              "_tile_" + std::to_string(tile_kib);
    add("strided_" + shape, roof_strided<Cached, threads, blocks, loads>, tile_kib, threads, blocks);
    add("claimed_" + shape, roof_claimed<Cached, threads, blocks, loads>, tile_kib, threads, blocks);
  }

  std::vector<PeerCopy> copies;

 private:
  const std::vector<Chunk>& chunks_;
  std::map<std::size_t, std::shared_ptr<Tiles>> tiles_;
};

#ifdef __CUDACC__
/// Where the device has the engine.
void add_bulk_copies(Shapes& shapes) {
  constexpr std::size_t tile_kib = stage_bytes >> 10;
  int device = 0, major = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  if (major < 9) return;
  const auto add = [&](const char* name, Kernel kernel, int blocks, std::uint32_t stages) {
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(stages * stage_bytes)));
    shapes.add(name, kernel, tile_kib, 32, blocks, stages * stage_bytes);
  };
  add("bulk_3", bulk_copy<3>, 2, 3);
  add("bulk_6", bulk_copy<6>, 1, 6);
}
#else
void add_bulk_copies(Shapes&) {}
#endif

}  // namespace

std::vector<PeerCopy> roof_copies(const std::vector<Chunk>& chunks) {
  Shapes shapes(chunks);
  shapes.add_once<128, 2>();
  shapes.add_once<256, 2>();
  shapes.add_once<256, 4>();
  shapes.add_once<512, 2>();
  shapes.add_once<1024, 2>();
  shapes.add_once<1024, 4>();
  shapes.add("looped_512x4_tile_64", roof_looped<Cached, 512, 4>, 64, 512, 0);
  shapes.add("streaming_256x4", roof_once<PastCaches, 256, 4>, 16, 256, 0);
  shapes.add_resident<256, 3, 4>(32);
  shapes.add_resident<256, 4, 4>(16);
  shapes.add_resident<512, 2, 4>(32);
  shapes.add_resident<512, 2, 8>(64);
  shapes.add_resident<1024, 2, 2>(32);
  add_bulk_copies(shapes);
  return shapes.copies;
}

}  // namespace stateport::perf
