// SPDX-License-Identifier: Apache-2.0
#include "c_world.hpp"

#include <cmath>
#include <string_view>

namespace stateport::fuzz {
namespace {

constexpr std::size_t known_max = 32;

constexpr KindCalls core_kinds[] = {
    {Kind::spec, call_on<stateport_spec, stateport_spec_destroy>},
    {Kind::layout, call_on<stateport_model_layout, stateport_model_layout_destroy>},
    {Kind::hasher, call_on<stateport_hasher, stateport_hasher_destroy>},
    {Kind::allocator, call_on<stateport_slot_allocator, stateport_slot_allocator_destroy>,
     call_on<stateport_slot_allocator, stateport_slot_allocator_check>},
    {Kind::planner, call_on<stateport_checkpoint_planner, stateport_checkpoint_planner_destroy>,
     call_on<stateport_checkpoint_planner, stateport_checkpoint_planner_check>},
    {Kind::tree, call_on<stateport_tree, stateport_tree_destroy>, call_on<stateport_tree, stateport_tree_check>},
    {Kind::lock, call_on<stateport_tree_lock, stateport_tree_lock_destroy>},
    {Kind::align, call_on<stateport_align_planner, stateport_align_planner_destroy>,
     call_on<stateport_align_planner, stateport_align_planner_check>},
    {Kind::cache, call_on<stateport_request_cache, stateport_request_cache_destroy>,
     call_on<stateport_request_cache, stateport_request_cache_check>}};

}  // namespace

const KindCalls& World::calls_of(Kind kind) const {
  for (const std::span<const KindCalls> kinds : {std::span<const KindCalls>(core_kinds), more_kinds_})
    for (const KindCalls& calls : kinds)
      if (calls.kind == kind) return calls;
  std::abort();
}

void World::end() {
  for (const Handle& handle : handles_) {
    const auto check = calls_of(handle.kind).check;
    if (!handle.lives || check == nullptr) continue;
    const stateport_status status = check(handle.value);
    if (status == STATEPORT_INTERNAL_ERROR) std::fprintf(stderr, "%s\n", stateport_last_error());
    expect(status != STATEPORT_INTERNAL_ERROR, "an object passes its own check");
  }
  for (const Handle& handle : handles_)
    if (handle.lives)
      expect(calls_of(handle.kind).destroy(handle.value) == STATEPORT_OK, "a live object can be destroyed");
  handles_.clear();
}

std::int64_t World::wide_number() {
  const std::uint8_t choice = input.take();
  if (choice < 136) return choice % 17;
  if (choice < 208) return known_.empty() ? choice % 4 : known_[choice % known_.size()];
  if (choice < 224) return std::int64_t{choice} % 4 - 4;
  if (choice < 232) return std::int64_t{1} << input.below(64);
  if (choice < 240) return (std::int64_t{1} << (8 + input.below(55))) - 1;
  if (choice < 246) return input.chance(128) ? INT64_MIN : INT32_MIN;
  return input.take<std::int64_t>();
}

std::int32_t World::capacity() {
  const std::uint8_t choice = input.take();
  if (choice < 216) return choice % 24 + 1;
  if (choice < 240) return choice % 8 - 4;
  return number();
}

double World::real() {
  static constexpr double reals[] = {0, 1, 0.5, 2, 1e-3, 1e3, 1e9, -1, 1e100, 1e300, 5e-324, INFINITY, -INFINITY, NAN};
  const std::uint8_t choice = input.take();
  if (choice < 240) return reals[choice % (choice < 192 ? 6 : std::size(reals))];
  return input.take<double>();
}

void World::know(std::int64_t value) {
  if (known_.size() < known_max) {
    known_.push_back(value);
  } else {
    known_[static_cast<std::size_t>(value) % known_max] = value;
  }
}

const void* World::text(std::size_t& count) {
  count = input.below(6);
  if (input.chance(64)) {
    count = input.chance(8) ? strange_count() : 0;
    return nullptr;
  }
  std::byte* const bytes = memory(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(input.take());
  return bytes;
}

std::byte* World::memory(std::size_t bytes, std::byte fill) {
  memory_.push_back(std::make_unique<std::byte[]>(bytes));
  std::fill_n(memory_.back().get(), bytes, fill);
  return memory_.back().get();
}

std::size_t World::struct_size(std::size_t usual) {
  if (!input.chance(10)) return usual;
  const std::size_t sizes[] = {usual + 8, usual + 8, usual - 4, usual - 8, sizeof(std::size_t),  0,
                               7,         4096,      4097,      SIZE_MAX,  usual / 2 / 8 * 8 + 8};
  return sizes[input.below(11)];
}

void World::keep(const void* place, std::size_t bytes) {
  const auto* const first = static_cast<const std::byte*>(place);
  kept_.push_back({first, {first, first + bytes}});
}

void* World::living(Kind kind) {
  const std::size_t start = input.take();
  for (std::size_t i = 0; i < handles_.size(); ++i) {
    const Handle& handle = handles_[(start + i) % handles_.size()];
    if (handle.lives && handle.kind == kind) return handle.value;
  }
  return nullptr;
}

void* World::pick_any(Kind kind) {
  if (!input.chance(6)) return living(kind);
  if (input.chance(64)) return nullptr;
  if (handles_.empty() || input.chance(64)) return reinterpret_cast<void*>(input.take<std::uintptr_t>());
  void* const any = handles_[input.take() % handles_.size()].value;  // of any kind, perhaps destroyed
  if (input.chance(192)) return any;
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(any) ^ std::uintptr_t{1} << input.below(64));
}

void World::forget(const void* handle) {
  for (Handle& known : handles_)
    if (known.value == handle) known.lives = false;
}

void World::judge(stateport_status status) {
  expect(status >= STATEPORT_OK && status <= STATEPORT_INVALID_STATE, "a status");
  if (status == STATEPORT_INTERNAL_ERROR) std::fprintf(stderr, "%s\n", stateport_last_error());
  expect(status != STATEPORT_INTERNAL_ERROR, "no defect of the library");
  if (status != STATEPORT_OK) {
    const std::string_view text = stateport_last_error();
    const bool is_of_argument = status == STATEPORT_INVALID_ARGUMENT || status == STATEPORT_INVALID_HANDLE;
    const bool names_it = text.find(" = ") != text.npos && text.find(" (") != text.npos;
    if (is_of_argument && !names_it) std::fprintf(stderr, "%s\n", stateport_last_error());
    expect(!text.empty() && (names_it || !is_of_argument), "a refusal names argument, value and rule");
    for (const Kept& kept : kept_)
      expect(std::equal(kept.before.begin(), kept.before.end(), kept.place), "a refused call writes no output");
  }
  kept_.clear();
  memory_.clear();
}

const stateport_namespace* name_space(World& world) {
  if (world.input.chance(128)) return nullptr;
  stateport_namespace result = {};
  result.extra_key = world.text(result.extra_key_bytes);
  result.salt = world.text(result.salt_bytes);
  return world.given(result);
}

const stateport_reuse_hint* hint(World& world) {
  if (world.input.chance(160)) return nullptr;
  return world.given(stateport_reuse_hint{.size = 0,
                                          .last_turn = world.flag(),
                                          .tool_call_pending = world.flag(),
                                          .factor = world.real(),
                                          .expected_idle_s = world.real(),
                                          .session = static_cast<std::uint64_t>(world.wide_number()),
                                          .continues = world.real() / 4});
}

const stateport_eviction_options* eviction(World& world) {
  if (world.input.chance(128)) return nullptr;
  stateport_eviction_options result = {};
  result.order = static_cast<std::int32_t>(world.input.below(10));
  if (world.input.chance(160)) {
    result.samples = world.capacity();
    result.state_bytes = world.wide_number();
    result.kv_bytes_per_token = world.wide_number();
    result.benefit_linear = world.real();
    result.benefit_quadratic = world.real();
    result.positions = static_cast<std::uint64_t>(world.capacity());
  } else {
    result.positions = 64;
  }
  return world.given(result);
}

stateport_tag tag(World& world) {
  return {.size = 0,
          .token_count = world.wide_number(),
          .prefix = {static_cast<std::uint64_t>(world.wide_number()), world.input.take()},
          .layout_fingerprint = world.input.below(3)};
}

stateport_media_key* media(World& world, std::size_t& count) {
  std::vector<stateport_media_key> keys(world.input.chance(64) ? world.input.below(3) : 0);
  for (stateport_media_key& key : keys) {
    key.id = world.text(key.id_bytes);
    key.first_token = world.wide_number();
  }
  count = keys.size();
  return world.structs(keys);
}

}  // namespace stateport::fuzz
