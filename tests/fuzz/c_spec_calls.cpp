// SPDX-License-Identifier: Apache-2.0
// Specs, layouts of models, hashes.
#include "c_world.hpp"

#include <string>

namespace stateport::fuzz {
namespace {

const stateport_spec_options* spec_options(World& world) {
  if (world.input.chance(128)) return nullptr;
  return world.given(stateport_spec_options{
      .size = 0, .drafts = world.number(), .conv_layout = world.flag(), .recurrent_type = world.number()});
}

const char* model_name(World& world) {
  if (world.input.chance(8)) return nullptr;
  if (world.input.chance(220)) return stateport_model_name(world.input.below(12));
  const std::size_t count = world.input.below(8);
  char* const name = world.room<char>(count + 1);
  for (std::size_t i = 0; i < count; ++i) name[i] = static_cast<char>(world.input.take());
  name[count] = '\0';
  return name;
}

stateport_tensor_spec tensor(World& world, std::int32_t layer) {
  const std::int32_t kind = world.input.chance(8) ? world.number() : world.flag();
  stateport_tensor_spec result = {.size = 0,
                                  .layer = world.input.chance(16) ? world.number() : layer / 2,
                                  .group = world.input.chance(16) ? world.number() : 0,
                                  .kind = kind,
                                  .type = world.input.chance(16) ? world.number() : 1,
                                  .conv_layout = world.flag(),
                                  .shape = {world.wide_number(), world.wide_number(), kind == 0 ? 1 : world.number()},
                                  .token_stride = 0,
                                  .channel_stride = 0};
  if (world.input.chance(24)) result.token_stride = world.wide_number();
  if (world.input.chance(24)) result.channel_stride = world.wide_number();
  return result;
}

void spec_create(World& world) {
  std::vector<stateport_tensor_spec> tensors;
  for (std::uint32_t count = world.input.below(6); count > 0; --count)
    tensors.push_back(tensor(world, static_cast<std::int32_t>(tensors.size())));
  const stateport_tensor_spec* const first = world.structs(tensors);
  world.make<stateport_spec>(Kind::spec,
                             [&](stateport_spec** out) { return stateport_spec_create(first, tensors.size(), out); });
}

void spec_find(World& world) {
  const char* const name = model_name(world);
  const auto* const options = spec_options(world);
  world.make<stateport_spec>(Kind::spec, [&](stateport_spec** out) { return stateport_spec_find(name, options, out); });
}

void spec_quantised(World& world) {
  auto* const spec = world.pick<stateport_spec>(Kind::spec);
  const std::int32_t type = world.number();
  world.make<stateport_spec>(Kind::spec,
                             [&](stateport_spec** out) { return stateport_spec_quantised(spec, type, out); });
}

void spec_destroy(World& world) {
  auto* const spec = world.pick<stateport_spec>(Kind::spec);
  const stateport_status status = stateport_spec_destroy(spec);
  if (status == STATEPORT_OK) world.forget(spec);
  world.judge(status);
}

void spec_describe(World& world) {
  auto* const spec = world.pick<stateport_spec>(Kind::spec);
  world.judge(stateport_spec_describe(spec, world.result<stateport_spec_info>()));
}

void spec_tensor(World& world) {
  auto* const spec = world.pick<stateport_spec>(Kind::spec);
  const auto index = static_cast<std::size_t>(world.wide_number());
  world.judge(stateport_spec_tensor(spec, index, world.result<stateport_tensor_spec>()));
}

void layout_create(World& world) {
  auto* const whole = world.pick<stateport_spec>(Kind::spec);
  std::size_t count = world.input.below(6);
  auto* const splits = world.room<stateport_tensor_split>(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t bands = world.input.below(4);
    auto* const first = world.room<stateport_split_band>(bands);
    for (std::size_t k = 0; k < bands; ++k) first[k] = {world.wide_number(), world.number(), world.flag()};
    splits[i] = {world.maybe(first), bands, world.number(), world.input.chance(4) ? 1 : 0};
  }
  const auto* const given = world.maybe(splits);
  if (given == nullptr) count = world.strange_count();
  world.make<stateport_model_layout>(Kind::layout, [&](stateport_model_layout** out) {
    return stateport_model_layout_create(whole, given, count, out);
  });
}

void layout_find(World& world) {
  const char* const name = model_name(world);
  const auto* const options = spec_options(world);
  world.make<stateport_model_layout>(
      Kind::layout, [&](stateport_model_layout** out) { return stateport_model_layout_find(name, options, out); });
}

void layout_destroy(World& world) {
  auto* const layout = world.pick<stateport_model_layout>(Kind::layout);
  const stateport_status status = stateport_model_layout_destroy(layout);
  if (status == STATEPORT_OK) world.forget(layout);
  world.judge(status);
}

void layout_fingerprint(World& world) {
  auto* const layout = world.pick<stateport_model_layout>(Kind::layout);
  world.judge(stateport_model_layout_fingerprint(layout, world.value<std::uint64_t>()));
}

void layout_spec(World& world) {
  auto* const layout = world.pick<stateport_model_layout>(Kind::layout);
  auto* const shard = world.room<stateport_shard>(1);
  *shard = {world.number(), world.number(), world.number(), world.number()};
  if (world.input.chance(64)) *shard = {};
  const auto* const given = world.maybe(shard);
  world.make<stateport_spec>(Kind::spec,
                             [&](stateport_spec** out) { return stateport_model_layout_spec(layout, given, out); });
}

const stateport_hash_options* hash_options(World& world) {
  stateport_hash_options options = {};
  options.block_size_tokens = world.capacity();
  options.fast = world.flag();
  options.salt = world.text(options.salt_bytes);
  options.adapter = world.text(options.adapter_bytes);
  return world.given(options);
}

void hash_blocks(World& world) {
  const auto* const options = hash_options(world);
  std::size_t count = 0;
  const auto* const tokens = world.array<std::int32_t>(count, &World::number);
  const std::size_t blocks = tokens == nullptr ? 0 : count;
  auto* const keys = world.maybe(world.room<std::int64_t>(blocks));
  auto* const prefixes = world.maybe(world.room<std::uint64_t>(2 * blocks));
  world.judge(stateport_hash_blocks(options, tokens, count, keys, prefixes));
}

void hasher_create(World& world) {
  const auto* const options = hash_options(world);
  world.make<stateport_hasher>(Kind::hasher,
                               [&](stateport_hasher** out) { return stateport_hasher_create(options, out); });
}

void hasher_destroy(World& world) {
  auto* const hasher = world.pick<stateport_hasher>(Kind::hasher);
  const stateport_status status = stateport_hasher_destroy(hasher);
  if (status == STATEPORT_OK) world.forget(hasher);
  world.judge(status);
}

void hasher_append(World& world) {
  auto* const hasher = world.pick<stateport_hasher>(Kind::hasher);
  std::size_t count = 0;
  const auto* const tokens = world.array<std::int32_t>(count, &World::number);
  std::size_t media_count = 0;
  const auto* const keys_of_media = media(world, media_count);
  const std::size_t capacity = world.input.below(70);
  auto* const keys = world.maybe(world.room<std::int64_t>(capacity));
  auto* const prefixes = world.maybe(world.room<std::uint64_t>(2 * capacity));
  world.judge(stateport_hasher_append(hasher, tokens, count, keys_of_media, media_count, keys, prefixes, capacity,
                                      world.value<std::size_t>()));
}

void hasher_reset(World& world) {
  world.judge(stateport_hasher_reset(world.pick<stateport_hasher>(Kind::hasher)));
}

constexpr Call calls[] = {spec_create,   spec_find,      spec_quantised, spec_destroy,       spec_describe, spec_tensor,
                          layout_find,   layout_create,  layout_destroy, layout_fingerprint, layout_spec,   hash_blocks,
                          hasher_create, hasher_destroy, hasher_append,  hasher_append,      hasher_reset};

}  // namespace

std::span<const Call> spec_calls() {
  return calls;
}

}  // namespace stateport::fuzz
