// SPDX-License-Identifier: Apache-2.0
// The runtime, streams, stores and copiers.
#include "c_device_world.hpp"

namespace stateport::fuzz {
namespace {

stateport_store* pick_store(World& world) {
  return world.pick<stateport_store>(Kind::store);
}
stateport_copier* pick_copier(World& world) {
  return world.pick<stateport_copier>(Kind::copier);
}

void runtime_create(DeviceWorld& world) {
  const stateport_runtime_options options = {
      .size = 0, .device_id = world.number() % 3, .host_threads = world.input.chance(128) ? 0 : world.number()};
  const auto* const given = world.input.chance(64) ? nullptr : world.given(options);
  world.make<stateport_runtime>(Kind::runtime,
                                [&](stateport_runtime** out) { return stateport_runtime_create(given, out); });
}

void streams(DeviceWorld& world) {
  expect(stateport_backend() != nullptr, "a backend has a name");
  void* const stream = world.stream();
  world.judge(world.input.chance(128) ? stateport_stream_forget(stream) : stateport_stream_synchronize(stream));
}

void copy_bytes(DeviceWorld& world) {
  void* const stream = world.stream();
  const std::size_t bytes = world.input.below(80);
  auto* const from = world.maybe(world.room<std::byte>(bytes));
  auto* const to = world.input.chance(16) ? from : world.maybe(world.room<std::byte>(bytes));
  const std::size_t offset = to == from && bytes > 0 ? world.input.below(static_cast<std::uint32_t>(bytes)) : 0;
  if (to != nullptr) world.keep(to, bytes);
  world.judge(stateport_copy_bytes(stream, to == nullptr ? nullptr : to + offset, from, bytes - offset));
}

void small_spec(DeviceWorld& world) {
  static_cast<void>(world.small_spec());
}

void image_bytes(DeviceWorld& world) {
  auto* const spec = world.pick<stateport_spec>(Kind::spec);
  world.judge(stateport_image_bytes(spec, world.value<std::uint64_t>()));
}

void store_create(DeviceWorld& world) {
  auto* const spec = world.pick<stateport_spec>(Kind::spec);
  stateport_store_options options = {};
  options.slots = world.input.chance(200) ? 1 + static_cast<std::int32_t>(world.input.below(6)) : world.capacity();
  options.layout = world.input.chance(8) ? world.number() : world.flag();
  if (!world.input.chance(4)) options.allocate = &DeviceWorld::allocate;
  if (!world.input.chance(4)) options.deallocate = &DeviceWorld::deallocate;
  options.context = &world;
  const auto* const given = world.given(options, sizeof options);
  void* const stream = world.stream();
  world.make<stateport_store>(Kind::store,
                              [&](stateport_store** out) { return stateport_store_create(spec, given, stream, out); });
}

constexpr std::size_t wide = std::size_t{1} << 20;  ///< more than a target gives to a view

/// From the first element of a slot to its last, or `wide`.
std::size_t extent_of(const stateport_tensor_spec& tensor) {
  constexpr std::size_t bytes_of[] = {0, 4, 2, 2, 8, 1, 1, 1};
  const auto type = static_cast<std::size_t>(tensor.type);
  std::size_t extents[3] = {};
  for (std::size_t axis = 0; axis < 3; ++axis) {
    if (tensor.shape[axis] > 4096) return wide;
    extents[axis] = static_cast<std::size_t>(tensor.shape[axis]);
  }
  if (type == STATEPORT_INT8_BLOCK32) return extents[0] * extents[1] * (extents[2] + 2 * ((extents[2] + 31) / 32));
  if (tensor.kind == STATEPORT_RECURRENT) return extents[0] * extents[1] * extents[2] * bytes_of[type];
  if (tensor.token_stride > 4096 || tensor.channel_stride > 4096) return wide;
  return ((extents[0] - 1) * static_cast<std::size_t>(tensor.token_stride) +
          (extents[1] - 1) * static_cast<std::size_t>(tensor.channel_stride) + 1) *
         bytes_of[type];
}

/// Memory for all slots of a tensor, which begins anywhere and ends with the last one.
stateport_tensor_memory memory_of(DeviceWorld& world, const stateport_tensor_spec& tensor, std::int32_t slots) {
  stateport_tensor_memory memory = {.size = sizeof memory, .base = nullptr, .slot_stride_bytes = 0};
  const std::size_t extent = extent_of(tensor);
  const std::size_t gap = world.input.chance(64) ? world.input.below(40) : 0;
  const std::size_t begin = world.input.chance(32) ? world.input.below(16) : 0;
  if (extent >= wide || slots < 1 || slots > 64) return memory;
  std::byte* const bytes = world.lasting(begin + (extent + gap) * static_cast<std::size_t>(slots - 1) + extent);
  if (bytes == nullptr) return memory;
  memory.base = bytes + begin;
  memory.slot_stride_bytes = static_cast<std::int64_t>(extent + gap);
  return memory;
}

void store_view(DeviceWorld& world) {
  auto* const spec = world.pick<stateport_spec>(Kind::spec);
  const std::int32_t slots = 1 + static_cast<std::int32_t>(world.input.below(6));
  stateport_spec_info info = {};
  info.size = sizeof info;
  std::vector<stateport_tensor_memory> memory;
  const bool known = stateport_spec_describe(spec, &info) == STATEPORT_OK;
  for (std::size_t i = 0; known && i < std::min<std::size_t>(info.tensors, 16); ++i) {
    stateport_tensor_spec tensor = {};
    tensor.size = sizeof tensor;
    expect(stateport_spec_tensor(spec, i, &tensor) == STATEPORT_OK, "a spec has its tensors");
    memory.push_back(memory_of(world, tensor, slots));
    if (world.input.chance(2)) memory.back().slot_stride_bytes = world.number() % 16 - 8;
  }
  if (world.input.chance(4)) memory.resize(world.input.below(6));
  const auto* const given = world.structs(memory, sizeof(stateport_tensor_memory));
  const std::int32_t said = world.input.chance(4) ? -world.capacity() : slots;
  world.make<stateport_store>(
      Kind::store, [&](stateport_store** out) { return stateport_store_view(spec, given, memory.size(), said, out); });
}

/// Addresses and strides of memory that does not exist. Nothing is copied there.
void far_view(DeviceWorld& world) {
  stateport_spec* const spec = world.small_spec();
  std::vector<stateport_tensor_memory> memory(4);
  for (stateport_tensor_memory& tensor : memory)
    tensor = {.size = sizeof tensor,
              .base = reinterpret_cast<void*>(world.wide_number() & ((std::int64_t{1} << 56) - 1)),
              .slot_stride_bytes = world.wide_number()};
  stateport_store* far = nullptr;
  stateport_copier* copier = nullptr;
  auto* const near = pick_store(world);
  const auto status = stateport_store_view(spec, world.structs(memory), memory.size(), world.number(), &far);
  if (status == STATEPORT_OK) {
    if (stateport_copier_create(world.input.chance(128) ? near : far, far, &copier) == STATEPORT_OK)
      static_cast<void>(stateport_copier_destroy(copier));
    static_cast<void>(stateport_store_destroy(far));
  }
  world.judge(status);
}

/// More than memory has, or next to nothing.
void vast_store(DeviceWorld& world) {
  stateport_tensor_spec tensor = {};
  tensor.size = sizeof tensor;
  tensor.kind = STATEPORT_RECURRENT;
  tensor.type = STATEPORT_FP32;
  tensor.shape[0] = std::int64_t{1} << world.input.below(39);
  tensor.shape[1] = tensor.shape[2] = 1;
  stateport_spec* spec = nullptr;
  expect(stateport_spec_create(&tensor, 1, &spec) == STATEPORT_OK, "a spec of up to 2^40 bytes");
  world.add(Kind::spec, spec);
  const std::int32_t slots = std::int32_t{1} << world.input.below(31);
  stateport_store* const store = make_store(world, spec, slots);
  if (store == nullptr) return;
  const std::int32_t last = slots - 1;
  world.judge(stateport_store_clear(store, nullptr, &last, 1));
}

/// The memory of another store from one of its slots on, as an engine that hands over parts of its pool has it.
void alias_view(DeviceWorld& world) {
  constexpr std::int32_t slots = 6;
  stateport_spec* const spec = world.small_spec();
  const auto first = static_cast<std::int32_t>(world.input.below(4));
  const std::ptrdiff_t shift = world.input.chance(64) ? static_cast<std::ptrdiff_t>(world.input.below(16)) : 0;
  std::vector<stateport_tensor_memory> whole;
  std::vector<stateport_tensor_memory> part;
  for (std::size_t i = 0; i < 4; ++i) {
    stateport_tensor_spec tensor = {};
    tensor.size = sizeof tensor;
    expect(stateport_spec_tensor(spec, i, &tensor) == STATEPORT_OK, "a spec has its tensors");
    whole.push_back(memory_of(world, tensor, slots));
    if (whole.back().base == nullptr) return;
    part.push_back(whole.back());
    part.back().base = static_cast<std::byte*>(part.back().base) + first * part.back().slot_stride_bytes + shift;
  }
  stateport_store* all = nullptr;
  stateport_store* some = nullptr;
  expect(stateport_store_view(spec, whole.data(), 4, slots, &all) == STATEPORT_OK, "a view of memory that is there");
  world.add(Kind::store, all);
  const auto status = stateport_store_view(spec, part.data(), 4, slots - first - (shift > 0 ? 1 : 0), &some);
  world.judge(status);
  if (status != STATEPORT_OK) return;
  world.add(Kind::store, some);
  stateport_copier* copier = nullptr;
  const bool copies_back = world.input.chance(128);
  if (stateport_copier_create(copies_back ? some : all, copies_back ? all : some, &copier) == STATEPORT_OK)
    world.add(Kind::copier, copier);
}

void store_tensor(DeviceWorld& world) {
  auto* const store = pick_store(world);
  const auto index = static_cast<std::size_t>(world.wide_number());
  world.judge(stateport_store_tensor(store, index, world.result<stateport_tensor_memory>()));
}

void store_copy(DeviceWorld& world) {
  auto* const store = pick_store(world);
  void* const stream = world.stream();
  std::size_t count = 0;
  const auto* const copies = world.copies(count);
  world.keep_stores();
  world.judge(stateport_store_copy(store, stream, copies, count));
}

void store_clear(DeviceWorld& world) {
  auto* const store = pick_store(world);
  void* const stream = world.stream();
  std::size_t count = world.input.below(5);
  auto* const slots = world.room<std::int32_t>(count);
  for (std::size_t i = 0; i < count; ++i) slots[i] = world.slot();
  const auto* const given = world.maybe(slots);
  if (given == nullptr && count > 0) count = world.strange_count();
  world.keep_stores();
  world.judge(stateport_store_clear(store, stream, given, count));
}

void copier_create(DeviceWorld& world) {
  auto* const source = pick_store(world);
  auto* const destination = pick_store(world);
  world.make<stateport_copier>(
      Kind::copier, [&](stateport_copier** out) { return stateport_copier_create(source, destination, out); });
}

void copier_create_scratch(DeviceWorld& world) {
  auto* const scratch = pick_store(world);
  auto* const live = pick_store(world);
  auto* const destination = pick_store(world);
  world.make<stateport_copier>(Kind::copier, [&](stateport_copier** out) {
    return stateport_copier_create_scratch(scratch, live, destination, out);
  });
}

/// Layers [begin, end): mostly those of a small spec.
struct Layers {
  explicit Layers(World& world)
      : begin(world.input.chance(32) ? world.number() : static_cast<std::int32_t>(world.input.below(3))),
        end(world.input.chance(32) || begin == INT32_MAX ? world.number()
                                                         : begin + static_cast<std::int32_t>(world.input.below(2))) {}
  std::int32_t begin;
  std::int32_t end;
};

void copier_copy(DeviceWorld& world) {
  auto* const copier = pick_copier(world);
  void* const stream = world.stream();
  std::size_t count = 0;
  const auto* const copies = world.copies(count);
  const std::uint32_t which = world.input.below(4);
  const Layers layers(world);
  world.keep_stores();
  if (which == 0) return world.judge(stateport_copier_copy(copier, stream, copies, count));
  if (which == 1) return world.judge(stateport_copier_copy_shifted(copier, stream, copies, count));
  const auto status =
      which == 2 ? stateport_copier_copy_layers(copier, stream, copies, count, layers.begin, layers.end)
                 : stateport_copier_copy_shifted_layers(copier, stream, copies, count, layers.begin, layers.end);
  expect(status != STATEPORT_OK || (layers.begin >= 0 && layers.begin <= layers.end && layers.end <= INT32_MAX - 1),
         "layers that no store has are refused");
  world.judge(status);
}

void copier_copy_on_device(DeviceWorld& world) {
  auto* const copier = pick_copier(world);
  void* const stream = world.stream();
  std::size_t count = 0;
  const auto* const copies = world.copies(count);
  const Layers layers(world);
  auto rows = copies == nullptr ? world.number() : static_cast<std::int32_t>(count);
  if (world.input.chance(4)) rows = -rows;
  world.keep_stores();
  world.judge(world.input.chance(128)
                  ? stateport_copier_copy_on_device(copier, stream, copies, rows)
                  : stateport_copier_copy_on_device_layers(copier, stream, copies, rows, layers.begin, layers.end));
}

void commit_scratch(DeviceWorld& world) {
  auto* const copier = pick_copier(world);
  void* const stream = world.stream();
  std::size_t intermediate_count = 0;
  const auto* const intermediates = world.copies(intermediate_count);
  std::size_t end_count = 0;
  const auto* const ends = world.copies(end_count);
  const Layers layers(world);
  world.keep_stores();
  world.judge(world.input.chance(128)
                  ? stateport_copier_commit_scratch(copier, stream, intermediates, intermediate_count, ends, end_count)
                  : stateport_copier_commit_scratch_layers(copier, stream, intermediates, intermediate_count, ends,
                                                           end_count, layers.begin, layers.end));
}

constexpr DeviceCall calls[] = {runtime_create,
                                destroy<stateport_runtime, Kind::runtime, stateport_runtime_destroy>,
                                streams,
                                copy_bytes,
                                small_spec,
                                small_spec,
                                image_bytes,
                                store_create,
                                store_create,
                                store_view,
                                store_view,
                                far_view,
                                vast_store,
                                alias_view,
                                destroy<stateport_store, Kind::store, stateport_store_destroy>,
                                store_tensor,
                                store_copy,
                                store_copy,
                                store_clear,
                                copier_create,
                                copier_create,
                                copier_create_scratch,
                                destroy<stateport_copier, Kind::copier, stateport_copier_destroy>,
                                copier_copy,
                                copier_copy,
                                copier_copy_on_device,
                                commit_scratch};

}  // namespace

Family store_family() {
  static constexpr DeviceCall begin[] = {small_spec, store_create, store_create, copier_create};
  return {begin, calls};
}

}  // namespace stateport::fuzz
