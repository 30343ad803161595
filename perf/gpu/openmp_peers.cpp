// SPDX-License-Identifier: Apache-2.0
// Host threads in place of a device and of all peers, for a dry run of the benchmarks of GPUs.
#include "device_time.hpp"
#include "peers.hpp"

#include <chrono>
#include <cstring>

namespace stateport::perf {
namespace {

PeerCopy memcpy_of(const char* name, const std::vector<Chunk>& chunks) {
  return {name, [chunks](const Stream&) {
            for (const Chunk& chunk : chunks) std::memcpy(chunk.dst, chunk.src, chunk.bytes);
          }};
}

}  // namespace

DeviceTime device_time(const Stream& stream, const std::function<void()>& enqueue) {
  const auto begin = std::chrono::steady_clock::now();
  enqueue();
  stream.synchronize();
  return {.ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count()};
}

void launch_empty_kernel(const Stream&) {}

void count_differences(const Stream&, const EqualRanges* ranges, std::uint32_t count, std::uint32_t* different) {
  for (std::uint32_t i = 0; i < count; ++i)
    if (std::memcmp(ranges[i].left, ranges[i].right, std::size_t{16} * ranges[i].words) != 0) ++*different;
}

std::vector<PeerCopy> peer_copies(const std::vector<Chunk>& chunks) {
  return {memcpy_of("memcpy_loop", chunks), memcpy_of("twin", chunks)};
}

PeerCopy peer_commit(const CommitWorkload& workload) {
  return memcpy_of("twin", workload.chunks());
}

}  // namespace stateport::perf
