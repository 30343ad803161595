// SPDX-License-Identifier: Apache-2.0
// The step committer, and checkpoints found by block table on the device.
#include "c_device_world.hpp"

namespace stateport::fuzz {
namespace {

// --- The step committer ----------------------------------------------------------------------------------------------

constexpr std::int32_t steps_max = 3;

/// Scratch memory of one tensor of a small spec, which ends with the last state of the last request.
stateport_step_scratch scratch_of(DeviceWorld& world, const stateport_tensor_spec& tensor, std::int32_t requests,
                                  std::int32_t steps) {
  constexpr std::int64_t bytes_of[] = {0, 4, 2, 2, 8, 1, 1, 1};
  stateport_step_scratch scratch = {};
  scratch.size = sizeof scratch;
  scratch.type = world.input.chance(64) ? 1 + static_cast<std::int32_t>(world.input.below(3)) : tensor.type;
  if (world.input.chance(2)) scratch.type = world.number() % 10;
  const std::int64_t bytes = scratch.type >= 0 && scratch.type < 8 ? bytes_of[scratch.type] : 4;
  std::int64_t elements = tensor.shape[0] * tensor.shape[1] * tensor.shape[2];
  if (tensor.kind == STATEPORT_CONV) {
    scratch.token_stride = world.flag() != 0 ? 1 : tensor.shape[1];
    scratch.channel_stride = scratch.token_stride == 1 ? tensor.shape[0] : 1;
    if (world.input.chance(64)) scratch.channel_stride += world.input.below(4);
    elements = (tensor.shape[0] - 1) * scratch.token_stride + (tensor.shape[1] - 1) * scratch.channel_stride + 1;
  }
  // A strip of conv inputs: each step begins one token later.
  const std::int64_t step = tensor.kind == STATEPORT_CONV && world.flag() != 0 ? scratch.token_stride : elements;
  const std::int64_t request = elements + (steps - 1) * step + world.input.below(2);
  scratch.step_stride_bytes = step * bytes;
  scratch.request_stride_bytes = request * bytes;
  const std::int64_t whole = ((requests - 1) * request + (steps - 1) * step + elements) * bytes;
  scratch.base = whole > 0 ? world.lasting(static_cast<std::size_t>(whole)) : nullptr;
  if (world.input.chance(2)) scratch.request_stride_bytes = -scratch.request_stride_bytes;
  if (world.input.chance(2)) scratch.step_stride_bytes = -1;
  if (world.input.chance(2)) scratch.token_stride = -static_cast<std::int64_t>(world.input.below(3));
  if (world.input.chance(2)) scratch.channel_stride = -static_cast<std::int64_t>(world.input.below(3));
  return scratch;
}

/// Of a store that is made for it, in which it knows the tensors, or of any.
void committer_create(DeviceWorld& world) {
  stateport_spec* const spec = world.small_spec();
  stateport_store* const store = make_store(world, spec, 6);
  if (store == nullptr) return;
  const std::int32_t requests = 1 + static_cast<std::int32_t>(world.input.below(4));
  const std::int32_t steps = 1 + static_cast<std::int32_t>(world.input.below(steps_max));
  std::vector<stateport_step_scratch> scratch;
  for (std::size_t i = 0; i < 4; ++i) {
    stateport_tensor_spec tensor = {};
    tensor.size = sizeof tensor;
    expect(stateport_spec_tensor(spec, i, &tensor) == STATEPORT_OK, "a spec has its tensors");
    scratch.push_back(scratch_of(world, tensor, requests, steps));
  }
  if (world.input.chance(4)) scratch.resize(world.input.below(6));
  const auto* const given = world.structs(scratch, sizeof(stateport_step_scratch));
  // Fewer than there is memory for; more would be the caller's lie.
  const std::int32_t said_requests = world.input.chance(4) ? requests - world.capacity() : requests;
  const std::int32_t said_steps = world.input.chance(4) ? steps - world.capacity() : steps;
  world.make<stateport_step_committer>(Kind::committer, [&](stateport_step_committer** out) {
    return stateport_step_committer_create(given, scratch.size(), store, std::min(said_requests, requests),
                                           std::min(said_steps, steps), out);
  });
}

/// Any handle for a destination, and strides of memory that is never read.
void committer_create_any(DeviceWorld& world) {
  auto* const store = world.pick<stateport_store>(Kind::store);
  std::vector<stateport_step_scratch> scratch(world.input.below(6));
  for (stateport_step_scratch& tensor : scratch)
    tensor = {.size = sizeof tensor,
              .base = reinterpret_cast<void*>(world.wide_number()),
              .request_stride_bytes = world.wide_number(),
              .step_stride_bytes = world.wide_number(),
              .token_stride = world.wide_number(),
              .channel_stride = world.wide_number(),
              .type = world.number() % 9};
  stateport_step_committer* committer = nullptr;
  const auto status = stateport_step_committer_create(world.structs(scratch), scratch.size(), store, world.number(),
                                                      world.number(), &committer);
  if (status == STATEPORT_OK) static_cast<void>(stateport_step_committer_destroy(committer));
  world.judge(status);
}

void committer_commit(DeviceWorld& world) {
  auto* const committer = world.pick<stateport_step_committer>(Kind::committer);
  void* const stream = world.stream();
  const std::size_t rows = world.input.below(5);
  const auto draw = [&](std::int32_t below) {
    auto* const values = world.room<std::int32_t>(rows);
    for (std::size_t i = 0; i < rows; ++i)
      values[i] =
          world.input.chance(48) ? world.number() : static_cast<std::int32_t>(world.input.take()) % (below + 1) - 1;
    return world.maybe(values);
  };
  stateport_step_targets targets = {};
  targets.last_step = draw(steps_max);
  targets.live_slot = draw(6);
  if (world.input.chance(128)) {
    targets.track_step = draw(steps_max);
    targets.track_slot = draw(6);
  }
  targets.rows = world.input.chance(4) ? -world.capacity() : static_cast<std::int32_t>(rows);
  const auto* const given = world.given(targets);
  world.keep_stores();
  world.judge(stateport_step_committer_commit(committer, stream, given));
}

// --- Align on the device ---------------------------------------------------------------------------------------------

constexpr std::int32_t columns = 4;
constexpr std::int32_t requests_max = 4;
constexpr std::size_t table_rows = 2 * requests_max;  ///< as many as a step may have

stateport_align* pick_align(World& world) {
  return world.pick<stateport_align>(Kind::device_align);
}

void align_create(DeviceWorld& world) {
  std::vector<stateport_align_group> groups(world.input.chance(240) ? 1 + world.input.below(2) : world.input.below(3));
  for (stateport_align_group& one : groups) {
    one.block_size_tokens = world.input.chance(200) ? 4 : world.capacity();
    one.blocks = world.input.chance(200) ? 6 : world.capacity();
    one.conv_window = world.input.chance(200) ? 4 : world.capacity() % 5;
    one.retention_tokens = world.input.chance(4) ? world.wide_number() : 0;
  }
  stateport_align_options options = {};
  options.drafts = world.input.chance(128) ? world.capacity() % 4 : 0;
  options.max_requests = world.input.chance(8) ? world.number() : 1 + static_cast<std::int32_t>(world.input.below(4));
  options.groups = world.structs(groups);
  options.group_count = groups.size();
  options.mode = world.input.chance(4) ? world.number() : 0;
  const auto* const given = world.given(options);
  world.make<stateport_align>(Kind::device_align,
                              [&](stateport_align** out) { return stateport_align_create(given, out); });
}

/// A block table of a group that has `blocks`.
stateport_align_binding binding_of(DeviceWorld& world, stateport_store* store) {
  stateport_align_binding binding = {};
  binding.size = sizeof binding;
  binding.store = store;
  const auto stride = static_cast<std::size_t>(columns) + world.input.below(2);
  const std::size_t ids = (table_rows - 1) * stride + columns;
  auto* const table = world.lasting_array<std::int32_t>(ids);
  for (std::size_t i = 0; table != nullptr && i < ids; ++i) table[i] = world.slot();
  binding.block_table = table;
  binding.row_stride = static_cast<std::int64_t>(stride);
  binding.columns = columns;
  return binding;
}

void align_bind(DeviceWorld& world) {
  auto* const align = pick_align(world);
  std::vector<stateport_align_binding> bindings(world.input.chance(240) ? 1 + world.input.below(2)
                                                                        : world.input.below(4));
  for (stateport_align_binding& binding : bindings) {
    binding = binding_of(world, world.pick<stateport_store>(Kind::store));
    if (world.input.chance(4)) binding.block_table = nullptr;
    if (world.input.chance(4)) binding.columns -= static_cast<std::int32_t>(world.input.below(8));
    if (world.input.chance(4)) binding.row_stride = columns - static_cast<std::int64_t>(world.input.below(8));
  }
  const auto* const given = world.structs(bindings);
  world.judge(stateport_align_bind(align, given, bindings.size()));
}

/// A context that is bound to a store that is made for it.
void matching_align(DeviceWorld& world) {
  stateport_align_group group = {};
  group.size = sizeof group;
  group.block_size_tokens = 1 + static_cast<std::int32_t>(world.input.below(5));
  group.blocks = 6;
  stateport_align_options options = {};
  options.size = sizeof options;
  options.drafts = static_cast<std::int32_t>(world.input.below(4));
  options.max_requests = requests_max;
  options.groups = &group;
  options.group_count = 1;
  stateport_store* const store = make_store(world, world.small_spec(), 6);
  stateport_align* align = nullptr;
  if (stateport_align_create(&options, &align) != STATEPORT_OK) return;
  world.add(Kind::device_align, align);
  const stateport_align_binding binding = binding_of(world, store);
  world.judge(stateport_align_bind(align, &binding, 1));
}

std::int32_t request(World& world) {
  return world.input.chance(24) ? world.number() : static_cast<std::int32_t>(world.input.below(requests_max));
}

void add_request(DeviceWorld& world) {
  auto* const align = pick_align(world);
  void* const stream = world.stream();
  const std::int32_t slot = request(world);
  const std::int64_t computed = world.wide_number();
  world.judge(world.input.chance(192) ? stateport_align_add_request(align, stream, slot, computed)
                                      : stateport_align_forget(align, stream, slot));
}

/// A batch of an engine: its arrays, in memory that ends with the last row.
struct Batch {
  explicit Batch(World& world) : rows(world.input.below(requests_max + 1)) {
    values.rows = static_cast<std::int32_t>(rows);
    values.request = array(world, [&] { return request(world); });
    values.computed = array(world, [&] { return world.number(); });
    values.scheduled = array(world, [&] { return world.number(); });
    if (world.input.chance(160)) values.drafts = array(world, [&] { return world.number() % 4; });
    if (world.input.chance(4)) values.rows = -values.rows;
  }
  template <class Draw>
  const std::int32_t* array(World& world, Draw&& draw) {
    std::int32_t* const all = world.room<std::int32_t>(rows);
    for (std::size_t i = 0; i < rows; ++i) all[i] = draw();
    return world.maybe(all);
  }

  std::size_t rows;
  stateport_align_batch values = {};
};

void stage(DeviceWorld& world) {
  auto* const align = pick_align(world);
  void* const stream = world.stream();
  const Batch batch(world);
  const auto* const given = world.given(batch.values);
  auto* const out = world.result<stateport_align_batch>();
  const stateport_status status = stateport_align_stage(align, stream, given, out);
  if (status == STATEPORT_OK && out->size == sizeof *out)
    for (const std::int32_t* array : {out->request, out->computed, out->scheduled, out->drafts})
      world.read(array, static_cast<std::size_t>(out->rows));
  world.judge(status);
}

template <auto call>
void step(DeviceWorld& world) {
  auto* const align = pick_align(world);
  void* const stream = world.stream();
  const Batch batch(world);
  const auto* const given = world.given(batch.values);
  world.keep_stores();
  world.judge(call(align, stream, given));
}

/// As an engine does it: stage, before the forward, after it.
void run_step(DeviceWorld& world) {
  auto* const align = pick_align(world);
  const Batch batch(world);
  stateport_align_batch host = batch.values;
  stateport_align_batch device = {};
  host.size = device.size = sizeof host;
  stateport_status status = stateport_align_stage(align, nullptr, &host, &device);
  if (status == STATEPORT_OK) status = stateport_align_pre_step(align, nullptr, &device);
  if (status == STATEPORT_OK) status = stateport_align_post_step(align, nullptr, &device);
  world.judge(status);
}

void scatter(DeviceWorld& world) {
  auto* const align = pick_align(world);
  void* const stream = world.stream();
  const auto count = static_cast<std::int32_t>(world.input.below(5));
  const auto* const requests = world.maybe(world.room<std::int32_t>(static_cast<std::size_t>(count), &World::number));
  const auto* const sampled = world.maybe(world.room<std::int32_t>(static_cast<std::size_t>(count), &World::number));
  world.judge(
      stateport_align_scatter_accepted(align, stream, requests, sampled, world.input.chance(4) ? -count : count));
}

void gather(DeviceWorld& world) {
  auto* const align = pick_align(world);
  void* const stream = world.stream();
  const std::int32_t group = world.input.chance(16) ? world.number() : 0;
  const Batch batch(world);
  const auto* const given = world.given(batch.values);
  const auto* const decode = world.maybe(world.room<std::uint8_t>(batch.rows));
  const std::size_t padded = world.input.below(8);
  auto* const accepted = world.maybe(world.room<std::int32_t>(padded));
  auto* const drafts = world.maybe(world.room<std::int32_t>(padded));
  if (accepted != nullptr) world.keep(accepted, padded * sizeof *accepted);
  world.judge(stateport_align_gather_decode(align, stream, group, given, decode, static_cast<std::int32_t>(padded),
                                            accepted, drafts));
}

void arrays(DeviceWorld& world) {
  auto* const align = pick_align(world);
  const std::int32_t group = world.input.chance(16) ? world.number() : 0;
  auto* const out = world.result<stateport_align_arrays>();
  const stateport_status status = stateport_align_group_arrays(align, group, out);
  if (status == STATEPORT_OK && out->size == sizeof *out)
    for (const std::int32_t* array : {out->columns, out->accepted, out->src_columns, out->src_offsets})
      world.read(array, 1);
  world.judge(status);
}

constexpr DeviceCall calls[] = {committer_create,
                                committer_create,
                                committer_create_any,
                                destroy<stateport_step_committer, Kind::committer, stateport_step_committer_destroy>,
                                committer_commit,
                                committer_commit,
                                committer_commit,
                                align_create,
                                align_create,
                                destroy<stateport_align, Kind::device_align, stateport_align_destroy>,
                                align_bind,
                                align_bind,
                                add_request,
                                add_request,
                                stage,
                                step<stateport_align_pre_step>,
                                step<stateport_align_post_step>,
                                step<stateport_align_post_step_advanced>,
                                run_step,
                                run_step,
                                scatter,
                                gather,
                                arrays};

}  // namespace

Family step_family() {
  static constexpr DeviceCall begin[] = {committer_create, matching_align};
  return {begin, calls};
}

}  // namespace stateport::fuzz
