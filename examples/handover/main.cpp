// SPDX-License-Identifier: Apache-2.0
// From prefill to decode: a group of two ranks that has computed a state hands it over to one rank. A plan says which
// bytes go where; the transport is a plain copy here, and NIXL or another one between machines.
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/backends/runtime.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core/model/models.hpp>
#include <stateport/kernels/resharder.hpp>
#include <stateport/tiers/handover.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

void expect(bool ok, const char* problem) {
  if (ok) return;
  std::fprintf(stderr, "%s\n", problem);
  std::exit(1);
}

/// The bytes of slot 0, tensor by tensor.
std::vector<std::byte> bytes_of(const stateport::StateStore& store, const stateport::Stream& stream) {
  std::vector<std::byte> all;
  for (const stateport::StateTensorView& tensor : store.tensors()) {
    std::vector<std::byte> some(tensor.spec.natural_bytes());
    stateport::copy_bytes(stream, some.data(), tensor.base, some.size());
    stream.synchronize();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace

int main() {
  const stateport::Runtime runtime;
  const stateport::Stream stream = stateport::Stream::default_stream();
  stateport::DeviceResource device_memory;
  stateport::PinnedResource host_memory;
  // docs: ranks
  const stateport::ModelLayout layout = stateport::models::layout("granite-4.0-h-tiny");
  const std::vector<stateport::ReshardRank> prefill = {
      {.global_rank = 0, .shard = {.layer_end = layout.layers(), .head_group = 0, .head_groups = 2}},
      {.global_rank = 1, .shard = {.layer_end = layout.layers(), .head_group = 1, .head_groups = 2}}};
  const std::vector<stateport::ReshardRank> decode = {{.global_rank = 2, .shard = {}}};
  // docs end

  // The whole state as it would be computed, and the share of it that each prefill rank has.
  const stateport::StateStore whole(device_memory, layout.whole(), {.slots = 1}, stream);
  for (const stateport::StateTensorView& tensor : whole.tensors()) {
    std::vector<std::byte> bytes(tensor.spec.natural_bytes());
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 120);
    stateport::copy_bytes(stream, tensor.base, bytes.data(), bytes.size());
    stream.synchronize();
  }
  const stateport::SlotCopy slot0[] = {stateport::SlotCopy::whole(0, 0)};
  std::vector<stateport::StateStore> shares;
  for (const stateport::ReshardRank& rank : prefill) {
    shares.emplace_back(device_memory, layout.spec_of(rank.shard), stateport::StoreOptions{.slots = 1}, stream);
    stateport::Resharder(layout, {&whole, {}}, {&shares.back(), rank.shard}).copy_slots(stream, slot0);
  }
  const stateport::StateStore target(device_memory, layout.whole(), {.slots = 1}, stream);

  // docs: hand a state over
  stateport::ObjectSetOptions options{.model = stateport::ModelId("granite, revision 1")};
  const stateport::HandoverPlan plan = stateport::plan_handover(layout, prefill, decode, options);
  options.grid = plan.grid;
  const stateport::ImageKey key{.prefix = {{11, 12}}, .tokens = 4096};  // from the hash of the prompt

  std::vector<stateport::HandoverEnd> sources;
  for (std::size_t i = 0; i < prefill.size(); ++i) {
    sources.emplace_back(host_memory, stateport::SharedLayout{layout, prefill[i].shard}, shares[i], options, 1);
    sources[i].pack(stream, slot0);
    stream.synchronize();
    sources[i].seal(0, key);
  }

  stateport::HandoverEnd destination(host_memory, {layout, decode[0].shard}, target, options, 1);
  for (const stateport::HandoverRange& range : plan.ranges) {  // the transport's work
    const auto from = sources[static_cast<std::size_t>(range.src_rank)].place(0);
    std::ranges::copy(from.subspan(range.src_offset, range.bytes),
                      destination.place(0).begin() + static_cast<std::ptrdiff_t>(range.dst_offset));
  }
  expect(destination.check(0, key) == stateport::TransferStatus::done, "the state did not arrive whole");
  destination.unpack(stream, slot0);
  stream.synchronize();
  // docs end

  expect(bytes_of(target, stream) == bytes_of(whole, stream), "the state differs");
  std::printf("%zu ranges of two ranks became one state of %zu bytes\n", plan.ranges.size(),
              target.spec().slot_bytes());
  return 0;
}
