// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>
#include <stateport/tiers/host_tier.hpp>
#include <stateport/tiers/image.hpp>

#include "late_lane.hpp"
#include "move/transfer_executor.hpp"
#include "random.hpp"
#include "slow_files.hpp"
#include "transfer_keys.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

/// TransferExecutor with copies and files that take their time.
namespace stateport::test {

/// The states of one group, or KV blocks, on the device. What an image of a key holds follows from the key.
class DeviceStates {
 public:
  DeviceStates(const StateSpec& spec, std::int32_t slots) : store_(resource_, spec, {.slots = slots}) {}

  [[nodiscard]] const StateStore& store() const { return store_; }
  void fill(std::int32_t slot, const ImageKey& key) {
    for (std::size_t i = 0; i < store_.tensors().size(); ++i) {
      const std::vector<std::byte> bytes = content(key, i, store_.tensors()[i].spec);
      copy_bytes(stream_, store_.tensors()[i].slot_data(SlotId{slot}), bytes.data(), bytes.size());
    }
    stream_.synchronize();
  }
  [[nodiscard]] bool holds(std::int32_t slot, const ImageKey& key) const {
    for (std::size_t i = 0; i < store_.tensors().size(); ++i) {
      const std::vector<std::byte> bytes = content(key, i, store_.tensors()[i].spec);
      std::vector<std::byte> held(bytes.size());
      copy_bytes(stream_, held.data(), store_.tensors()[i].slot_data(SlotId{slot}), held.size());
      stream_.synchronize();
      if (held != bytes) return false;
    }
    return true;
  }
  [[nodiscard]] static std::vector<std::byte> content(const ImageKey& key, std::size_t tensor,
                                                      const StateTensorSpec& spec) {
    Random random(key.prefix.words[0] * 1000003 + static_cast<std::uint64_t>(key.tokens) * 101 +
                  static_cast<std::uint64_t>(key.group) * 11 + static_cast<std::uint64_t>(key.content) * 5 + tensor);
    std::vector<std::byte> bytes(spec.natural_bytes());
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.bits());
    return bytes;
  }

 private:
  DeviceResource resource_;
  Stream stream_ = Stream::default_stream();
  StateStore store_;
};

/// Two groups of states and KV, and a remote tier whose objects are their images. A frame of host memory has one image
/// of group 0, two of group 1 or three KV blocks.
class TransferRig {
 public:
  explicit TransferRig(std::size_t frames, std::size_t staging_frames = 0,
                       const tiers::TransferExecutor::Below& limits = {}, std::size_t remote_frames = 0)
      : layouts_(make_layouts()),
        host(memory_, host_options(frames, staging_frames)),
        remote_staging(memory_, host_options(0, remote_frames)) {
    // What the memory held before would do for an image that never came.
    std::memset(host.data(), 0xA5, (frames + staging_frames) * host.frame_bytes());
    if (remote_frames > 0) std::memset(remote_staging.data(), 0xA5, remote_frames * host.frame_bytes());
    std::vector<tiers::TransferExecutor::Kind> kinds;
    const tiers::CopyRoutes routes{.kinds = layouts_.size(), .encodings = 1};
    std::vector<tiers::RouteCopier> copiers(routes.count());
    for (std::size_t kind = 0; kind < layouts_.size(); ++kind) {
      const auto route = [&](const StateStore& from, const StateStore& to) {
        return tiers::route_of(SlotCopier(from, to));
      };
      const StateStore images = view(host, kind);
      copiers[routes.to_host(kind)] = route(states[kind].store(), images);
      copiers[routes.to_device(kind)] = route(images, states[kind].store());
      if (remote_frames > 0) {
        const StateStore objects = view(remote_staging, kind);
        copiers[routes.to_objects(kind)] = route(states[kind].store(), objects);
        copiers[routes.host_to_objects(kind)] = route(images, objects);
        copiers[routes.from_objects(kind, 0)] = route(objects, states[kind].store());
      }
      kinds.push_back({layouts_[kind], slots});
    }
    lane = std::make_unique<LateLane>(std::make_unique<tiers::DeviceLane>(std::move(copiers)), routes);
    tiers::TransferExecutor::Below below = limits;
    below.tier = staging_frames > 0 ? &files : nullptr;
    below.staging = &host;
    tiers::TransferExecutor::Below far = limits;
    far.tier = remote_frames > 0 ? &remote : nullptr;
    far.staging = &remote_staging;
    far.objects = true;
    far.kv_bytes_together = 0;
    executor = std::make_unique<tiers::TransferExecutor>(host, kinds, *lane, routes, below, far);
  }

  void execute(const std::vector<Transfer>& transfers) {
    make_call([&] { executor->execute(stream, transfers); });
    executor->check_invariants();
  }
  std::vector<TransferResult> poll(std::size_t max = 1000) {
    std::vector<TransferResult> results(max);
    std::size_t count = 0;
    make_call([&] { count = executor->poll(stream, results); });
    results.resize(count);
    executor->check_invariants();
    return results;
  }
  /// The engine writes the state of `key` to a slot, in the order of its stream.
  void compute(std::int32_t slot, const ImageKey& key) {
    lane->enqueue([this, slot, key] { of(key).fill(slot, key); });
  }
  DeviceStates& of(const ImageKey& key) { return states[static_cast<std::size_t>(host.kind_of(key))]; }
  [[nodiscard]] const ImageLayout& layout(const ImageKey& key) const {
    return layouts_[static_cast<std::size_t>(host.kind_of(key))];
  }
  /// Whether the sections of an image are what its key says.
  [[nodiscard]] bool verify(const ImageKey& key, std::span<const std::byte> image) const {
    const ImageLayout& its = layout(key);
    for (std::size_t i = 0; i < its.spec().tensors().size(); ++i) {
      const std::vector<std::byte> bytes = DeviceStates::content(key, i, its.spec().tensors()[i]);
      if (!std::ranges::equal(image.subspan(its.section_offset(i), bytes.size()), bytes)) return false;
    }
    return true;
  }

  static constexpr std::int32_t slots = 8;

 private:
  static std::vector<StateSpec> specs() {
    const StateTensorSpec tensor{.shape = {2, 3, 5}};
    return {StateSpec(std::vector(5, tensor)), StateSpec(std::vector(2, tensor)), StateSpec({tensor})};
  }
  static std::vector<ImageLayout> make_layouts() {
    return {ImageLayout(specs()[0], {.model = ModelId(9), .group = 0}),
            ImageLayout(specs()[1], {.model = ModelId(9), .group = 1}),
            ImageLayout(specs()[2], {.model = ModelId(9), .content = CacheContent::kv_block})};
  }
  [[nodiscard]] HostTierOptions host_options(std::size_t frames, std::size_t staging_frames) const {
    return {.budget_bytes = frames * layouts_[0].image_bytes(),
            .staging_bytes = staging_frames * layouts_[0].image_bytes(),
            .state_image_bytes = {layouts_[0].image_bytes(), layouts_[1].image_bytes()},
            .kv_image_bytes = layouts_[2].image_bytes()};
  }
  [[nodiscard]] StateStore view(const HostTier& memory, std::size_t kind) const {
    std::vector<StateTensorView> tensors;
    for (std::size_t i = 0; i < layouts_[kind].spec().tensors().size(); ++i)
      tensors.push_back(
          {.spec = layouts_[kind].spec().tensors()[i],
           .base = memory.data() + layouts_[kind].section_offset(i),
           .slot_stride_bytes = static_cast<std::int64_t>(memory.stride_bytes(static_cast<std::int32_t>(kind)))});
    return StateStore::view(tensors, memory.places(static_cast<std::int32_t>(kind)));
  }

  std::vector<ImageLayout> layouts_;
  PinnedResource memory_;

 public:
  Stream stream = Stream::default_stream();
  HostTier host;
  HostTier remote_staging;
  std::array<DeviceStates, 3> states{DeviceStates(specs()[0], slots), DeviceStates(specs()[1], slots),
                                     DeviceStates(specs()[2], slots)};
  std::unique_ptr<LateLane> lane;
  SlowFiles files{[this](const ImageKey& key, std::span<const std::byte> image) { return verify(key, image); },
                  [this](const ImageKey& key, std::span<std::byte> image) { layout(key).seal(image, key); }};
  SlowFiles remote{[this](const ImageKey& key, std::span<const std::byte> image) { return verify(key, image); },
                   [this](const ImageKey& key, std::span<std::byte> image) { layout(key).seal(image, key); }};
  std::unique_ptr<tiers::TransferExecutor> executor;
  /// How calls of the executor are made.
  std::function<void(const std::function<void()>&)> make_call = [](const std::function<void()>& call) { call(); };
};

}  // namespace stateport::test
