// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/transfer.hpp>

#include "count_differences.hpp"
#include "peers.hpp"
#include "twin_commit.hpp"
#include "twin_copy.hpp"
#include "vendor_calls.hpp"

#include <cub/device/device_memcpy.cuh>

#include <memory>

namespace stateport::perf {
namespace {

/// The chunks as the calls want them, on the host and on the device.
struct Tables {
  explicit Tables(const std::vector<Chunk>& chunks) {
    for (const Chunk& chunk : chunks) {
      dst.push_back(chunk.dst);
      src.push_back(chunk.src);
      bytes.push_back(chunk.bytes);
    }
    tiles = twin_tiles(chunks);
    device_dst = upload(dst);
    device_src = upload(src);
    device_bytes = upload(bytes);
    device_tiles = upload(tiles);
  }
  template <class T>
  Buffer upload(const std::vector<T>& values) {
    const Stream stream = Stream::default_stream();
    Buffer buffer(resource, values.size() * sizeof(T));
    copy_bytes(stream, buffer.data(), values.data(), values.size() * sizeof(T));
    stream.synchronize();
    return buffer;
  }

  DeviceResource resource;
  std::vector<void*> dst;
  std::vector<const void*> src;
  std::vector<std::size_t> bytes;
  std::vector<TwinTile> tiles;
  Buffer device_dst, device_src, device_bytes, device_tiles, scratch;
  std::size_t scratch_bytes = 0;
};

void memcpy_loop(const Tables& tables, const Stream& stream) {
  for (std::size_t i = 0; i < tables.dst.size(); ++i)
    check(cudaMemcpyAsync(tables.dst[i], tables.src[i], tables.bytes[i], cudaMemcpyDeviceToDevice, native(stream)));
}

#if CUDART_VERSION >= 13000
void memcpy_batch(Tables& tables, const Stream& stream) {
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  std::size_t first = 0;
  check(cudaMemcpyBatchAsync(tables.dst.data(), tables.src.data(), tables.bytes.data(), tables.dst.size(), &attributes,
                             &first, 1, native(stream)));
}
#endif

/// Sizes its scratch memory when there is none.
void cub_batched(Tables& tables, void* scratch, const Stream& stream) {
  check(cub::DeviceMemcpy::Batched(scratch, tables.scratch_bytes, tables.device_src.as<const void*>(),
                                   tables.device_dst.as<void*>(), tables.device_bytes.as<std::size_t>(),
                                   static_cast<std::uint32_t>(tables.dst.size()), native(stream)));
}

}  // namespace

void count_differences(const Stream& stream, const EqualRanges* ranges, std::uint32_t count, std::uint32_t* different) {
  count_differing_words<<<compare_blocks, compare_threads, 0, native(stream)>>>(ranges, count, different);
  check(cudaGetLastError());
}

std::vector<PeerCopy> peer_copies(const std::vector<Chunk>& chunks) {
  const auto tables = std::make_shared<Tables>(chunks);
  cub_batched(*tables, nullptr, Stream::default_stream());
  tables->scratch = Buffer(tables->resource, tables->scratch_bytes);
  std::vector<PeerCopy> peers;
  peers.push_back({"memcpy_loop", [tables](const Stream& stream) { memcpy_loop(*tables, stream); }});
#if CUDART_VERSION >= 13000
  peers.push_back({"memcpy_batch", [tables](const Stream& stream) { memcpy_batch(*tables, stream); }});
#endif
  peers.push_back({"cub", [tables](const Stream& stream) { cub_batched(*tables, tables->scratch.data(), stream); }});
  peers.push_back({"twin", [tables](const Stream& stream) {
                     twin_copy<<<static_cast<unsigned>(tables->tiles.size()), twin_threads, 0, native(stream)>>>(
                         tables->device_tiles.as<TwinTile>());
                     check(cudaGetLastError());
                   }});
  return peers;
}

PeerCopy peer_commit(const CommitWorkload& workload) {
  const std::vector<TwinScratch> tensors = twin_scratch(workload);
  const StepTargets targets = workload.targets();
  const auto resource = std::make_shared<DeviceResource>();
  const auto table = std::make_shared<Buffer>(*resource, tensors.size() * sizeof(TwinScratch));
  copy_bytes(Stream::default_stream(), table->data(), tensors.data(), table->size_bytes());
  Stream::default_stream().synchronize();
  const dim3 blocks = twin_commit_blocks(tensors, targets.rows);
  return {"twin", [resource, table, blocks, targets](const Stream& stream) {
            twin_commit<<<blocks, twin_threads, 0, native(stream)>>>(table->as<TwinScratch>(), targets.last_step,
                                                                     targets.live_slot);
            check(cudaGetLastError());
          }};
}

}  // namespace stateport::perf
