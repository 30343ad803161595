// SPDX-License-Identifier: Apache-2.0
#include "slot_workload.hpp"

#include <stateport/backends/transfer.hpp>
#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

namespace stateport::perf {

std::int32_t slots_in_pool(const StateSpec& spec) {
  return static_cast<std::int32_t>(pool_bytes / spec.slot_bytes());
}

std::vector<std::int32_t> shuffled_slots(const StateStore& store) {
  std::vector<std::int32_t> slots(static_cast<std::size_t>(store.slots()));
  std::iota(slots.begin(), slots.end(), 0);
  std::ranges::shuffle(slots, std::mt19937_64(1));
  return slots;
}

void fill_randomly(const StateStore& store) {
  constexpr std::size_t piece_bytes = std::size_t{8} << 20;
  std::vector<std::uint64_t> words(2 * piece_bytes / sizeof(std::uint64_t));
  std::uint64_t value = 1;
  for (std::uint64_t& word : words) word = value = value * 6364136223846793005u + 1442695040888963407u;
  std::mt19937_64 random(2);
  const Stream stream = Stream::default_stream();
  for (const StateTensorView& tensor : store.tensors()) {
    const std::size_t bytes =
        static_cast<std::size_t>(tensor.slot_stride_bytes) * static_cast<std::size_t>(store.slots() - 1) +
        tensor.spec.natural_bytes();
    for (std::size_t at = 0; at < bytes; at += piece_bytes)
      copy_bytes(stream, tensor.base + at, words.data() + random() % (words.size() / 2),
                 std::min(piece_bytes, bytes - at));
  }
  stream.synchronize();
}

namespace {
/// Outlives every workload.
MemoryResource& device_memory() {
  static DeviceResource resource;
  return resource;
}
}  // namespace

CopyWorkload::CopyWorkload(const StateSpec& spec, std::int32_t requests, std::size_t bytes)
    : CopyWorkload(device_memory(), spec, requests, bytes) {}

CopyWorkload::CopyWorkload(MemoryResource& resource, const StateSpec& spec, std::int32_t requests, std::size_t bytes)
    : store_(resource, spec, {.slots = static_cast<std::int32_t>(bytes / spec.slot_bytes())}) {
  require(2 * requests <= store_.slots(), "requests", requests, "two states of each must fit into the pool");
  fill_randomly(store_);
  const std::vector<std::int32_t> order = shuffled_slots(store_);
  for (std::size_t next = 0; next + 2 * static_cast<std::size_t>(requests) <= order.size();) {
    std::vector<SlotCopy> plan;
    for (std::int32_t i = 0; i < requests; ++i, next += 2)
      plan.push_back(SlotCopy::whole(order[next], order[next + 1]));
    plans_.push_back(std::move(plan));
  }
}

std::vector<Chunk> CopyWorkload::chunks(int round) const {
  std::vector<Chunk> result;
  for (const SlotCopy& copy : plan(round))
    for (const StateTensorView& tensor : store_.tensors())
      result.push_back({tensor.slot_data(SlotId{copy.dst_slot}), tensor.slot_data(SlotId{copy.src_slot}),
                        tensor.spec.natural_bytes()});
  return result;
}

double CopyWorkload::moved_bytes() const {
  return 2.0 * static_cast<double>(plan(0).size()) * static_cast<double>(store_.spec().slot_bytes());
}

bool CopyWorkload::copies_exactly() {
  return copies_exactly([this] { run(0); });
}

bool CopyWorkload::copies_exactly(const std::function<void()>& copy) const {
  const Stream stream = Stream::default_stream();
  for (const Chunk& chunk : chunks(0)) fill_bytes(stream, chunk.dst, std::byte{0xA5}, chunk.bytes);
  stream.synchronize();
  copy();
  std::vector<std::byte> src, dst;
  return std::ranges::all_of(chunks(0), [&](const Chunk& chunk) {
    src.resize(chunk.bytes);
    dst.resize(chunk.bytes);
    copy_bytes(stream, src.data(), chunk.src, chunk.bytes);
    copy_bytes(stream, dst.data(), chunk.dst, chunk.bytes);
    stream.synchronize();
    return std::memcmp(src.data(), dst.data(), chunk.bytes) == 0;
  });
}

}  // namespace stateport::perf
