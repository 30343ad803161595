// SPDX-License-Identifier: Apache-2.0
// Images in files. As a rule every accepted request is waited for, so that the speed of files does not change an
// input's run.
#include "c_device_world.hpp"

namespace stateport::fuzz {
namespace {

stateport_file_tier* pick_files(World& world) {
  return world.pick<stateport_file_tier>(Kind::files);
}

void file_create(DeviceWorld& world) {
  std::vector<stateport_spec*> states(world.input.chance(240) ? 1 : world.input.below(3));
  for (stateport_spec*& spec : states)
    spec = world.input.chance(32) ? world.pick<stateport_spec>(Kind::spec) : world.small_spec();
  stateport_spec** const first = world.room<stateport_spec*>(states.size());
  for (std::size_t i = 0; i < states.size(); ++i) first[i] = states[i];
  stateport_file_tier_options options = {};
  options.folder = world.folder();
  options.file_bytes = world.input.chance(200) ? 1 << 18 : static_cast<std::uint64_t>(world.wide_number());
  if (world.input.chance(8)) options.free_floor_bytes = static_cast<std::uint64_t>(world.wide_number());
  options.queue_bytes = world.input.chance(16) ? static_cast<std::uint64_t>(world.wide_number()) : 1 << 18;
  options.states = world.maybe(first);
  options.state_count = states.size();
  if (world.input.chance(64)) options.kv = world.pick<stateport_spec>(Kind::spec);
  options.model = world.model(options.model_bytes);
  if (world.input.chance(16)) {
    const stateport_shard shard = world.shard();
    options.layer_begin = shard.layer_begin;
    options.layer_end = shard.layer_end;
    options.head_group = shard.head_group;
    options.head_groups = shard.head_groups;
  }
  options.lanes = world.input.chance(8) ? world.number() : static_cast<std::int32_t>(world.input.below(3));
  options.scrub = world.flag();
  const auto* const given = world.given(options);
  world.make<stateport_file_tier>(Kind::files,
                                  [&](stateport_file_tier** out) { return stateport_file_tier_create(given, out); });
}

void describe(DeviceWorld& world) {
  auto* const files = pick_files(world);
  const std::int32_t content = world.input.chance(16) ? world.number() : world.flag();
  const std::int32_t group = world.input.chance(16) ? world.number() : 0;
  switch (world.input.below(4)) {
    case 0:
      return world.judge(stateport_file_tier_describe(files, world.result<stateport_file_tier_info>()));
    case 1:
      return world.judge(stateport_file_tier_layout(files, content, group, world.result<stateport_image_layout>()));
    case 2: {
      const auto index = static_cast<std::size_t>(world.wide_number());
      auto* const offset = world.value<std::uint64_t>();
      return world.judge(
          stateport_file_tier_section(files, content, group, index, offset, world.value<std::uint64_t>()));
    }
    default:
      return world.judge(stateport_file_tier_check(files));
  }
}

/// Of the image of a key, as the tier tells it, or few that are not enough.
std::size_t image_bytes(World& world, stateport_file_tier* files, const stateport_image_key& key) {
  stateport_image_layout layout = {};
  layout.size = sizeof layout;
  const bool known = stateport_file_tier_layout(files, key.content, key.group, &layout) == STATEPORT_OK;
  return known ? layout.image_bytes : world.input.below(80);
}

void settle(DeviceWorld& world, stateport_file_tier* files, stateport_status status) {
  const bool waits = !world.input.chance(16);
  if (status == STATEPORT_OK && waits) status = stateport_file_tier_wait(files);
  world.judge(status);
}

void write(DeviceWorld& world) {
  auto* const files = pick_files(world);
  std::size_t count = 0;
  const auto* const keys = world.keys(count);
  std::vector<const void*> images;
  for (std::size_t i = 0; keys != nullptr && i < count; ++i)
    images.push_back(world.maybe(world.lasting(image_bytes(world, files, keys[i]), std::byte{world.input.take()})));
  const void** const given = world.room<const void*>(images.size());
  for (std::size_t i = 0; i < images.size(); ++i) given[i] = images[i];
  const auto id = static_cast<std::uint64_t>(world.wide_number());
  settle(world, files, stateport_file_tier_write(files, id, keys, world.maybe(given), count));
}

void read(DeviceWorld& world) {
  auto* const files = pick_files(world);
  auto* const key = world.room<stateport_image_key>(1);
  *key = world.key();
  std::size_t bytes = image_bytes(world, files, *key);
  if (world.input.chance(8)) bytes += world.input.below(2) == 0 ? std::size_t{1} : std::size_t{4096};
  auto* image = world.maybe(world.lasting(bytes));
  if (image == nullptr && bytes > 0) bytes = world.strange_count();
  const auto id = static_cast<std::uint64_t>(world.wide_number());
  settle(world, files, stateport_file_tier_read(files, id, world.maybe(key), image, bytes));
}

void poll(DeviceWorld& world) {
  auto* const files = pick_files(world);
  std::size_t capacity = 0;
  auto* const out = answers<stateport_transfer_result>(world, capacity, 5);
  world.judge(stateport_file_tier_poll(files, out, capacity, world.value<std::size_t>()));
}

void lookup(DeviceWorld& world) {
  auto* const files = pick_files(world);
  std::size_t count = 0;
  const auto* const keys = world.keys(count);
  auto* const held = world.maybe(world.room<std::uint8_t>(keys == nullptr ? 0 : count));
  world.judge(stateport_file_tier_lookup(files, keys, count, held));
}

void remove(DeviceWorld& world) {
  auto* const files = pick_files(world);
  std::size_t count = 0;
  const auto* const keys = world.keys(count);
  settle(world, files, stateport_file_tier_remove(files, keys, count));
}

void all_keys(DeviceWorld& world) {
  auto* const files = pick_files(world);
  std::size_t capacity = 0;
  auto* const out = answers<stateport_image_key>(world, capacity, 5);
  world.judge(stateport_file_tier_keys(files, out, capacity, world.value<std::size_t>()));
}

void wait(DeviceWorld& world) {
  world.judge(stateport_file_tier_wait(pick_files(world)));
}

constexpr DeviceCall calls[] = {
    file_create, file_create, destroy<stateport_file_tier, Kind::files, stateport_file_tier_destroy>,
    describe,    write,       write,
    write,       read,        read,
    poll,        poll,        lookup,
    remove,      all_keys,    wait};

}  // namespace

Family file_family() {
  static constexpr DeviceCall begin[] = {file_create};
  return {begin, calls};
}

}  // namespace stateport::fuzz
