// SPDX-License-Identifier: Apache-2.0
// AlignContext against AlignPlanner, which decides, and a serial reference, which moves: byte for byte, guard bands
// included.
#include <stateport/kernels/align_context.hpp>

#include <stateport/core/model/error.hpp>
#include <stateport/parts/align_planner.hpp>

#include "device_array.hpp"
#include "slot_kernels.hpp"
#include "store_image.hpp"

#include <doctest/doctest.h>

#include <deque>
#include <vector>

using namespace stateport;
using test::DeviceArray;
using test::from_device;
using test::Random;
using Int32s = std::vector<std::int32_t>;

namespace {

/// The align copies, element by element: conv tokens shifted, recurrent states whole.
void run_plan(test::StoreImage& image, CopyPlan plan) {
  for (const SlotCopy& copy : plan)
    for (std::size_t i = 0; i < image.tensor_count(); ++i) {
      const StateTensorSpec& spec = image.tensor(i);
      const auto bytes = static_cast<std::int64_t>(element_bytes(spec.type));
      if (spec.kind == StateKind::recurrent) {
        if (copy.recurrent_src_slot > 0)
          std::memmove(image.slot(i, copy.dst_slot), image.slot(i, copy.recurrent_src_slot), spec.natural_bytes());
        continue;
      }
      if (copy.src_slot <= 0) continue;
      for (std::int64_t t = 0; t + copy.conv_shift < spec.window(); ++t)
        for (std::int64_t c = 0; c < spec.dim(); ++c)
          std::memcpy(
              image.slot(i, copy.dst_slot) + test::reference::element_index(spec, t, c) * bytes,
              image.slot(i, copy.src_slot) + test::reference::element_index(spec, t + copy.conv_shift, c) * bytes,
              static_cast<std::size_t>(bytes));
    }
}

constexpr std::int32_t columns = 7;

struct Scene {
  AlignOptions options;
  std::deque<test::StoreImage> images;
  std::deque<StateStore> stores;
  std::int64_t stride = columns;
  std::vector<Int32s> ids;  ///< per group, [rows, stride]
  std::deque<DeviceArray<std::int32_t>> tables;

  explicit Scene(Random& random) {
    // Most scenes move states; the other modes share all of the calls.
    options = {.mode = random.chance(80)   ? AlignMode::align
                       : random.chance(50) ? AlignMode::all
                                           : AlignMode::none,
               .drafts = random.between32(0, 3),
               .max_requests = random.between32(1, 5),
               .groups = {}};
    const std::int64_t groups = random.between(1, 3);
    const Stream stream = Stream::default_stream();
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int32_t blocks = options.max_requests * columns + 1;
      options.groups.push_back({.block_size_tokens = random.between32(1, 6), .blocks = blocks});
      std::vector<StateTensorSpec> tensors;
      const StateSpec drawn = test::random_spec(random, test::SpecUse::live);
      for (StateTensorSpec tensor : drawn.tensors()) {
        for (std::int64_t& extent : tensor.shape) extent = std::min<std::int64_t>(extent, 40);
        if (tensor.kind == StateKind::conv) {
          tensor.shape[0] = options.drafts + random.between(1, 3);
          tensor.strides = test::random_strides(random, tensor);
        }
        tensors.push_back(tensor);
      }
      images.emplace_back(random, StateSpec(tensors), test::ImageOptions{.slots = blocks});
      stores.push_back(images.back().upload(stream));
    }
  }

  /// Distinct blocks per row, some null or negative.
  void draw_tables(Random& random, const Int32s& request) {
    stride = columns + random.between(0, 2);
    ids.assign(options.groups.size(), Int32s(request.size() * static_cast<std::size_t>(stride), -5));
    for (Int32s& table : ids)
      for (std::size_t row = 0; row < request.size(); ++row)
        for (std::int32_t c = 0; c < columns && request[row] >= 0; ++c)
          table[row * static_cast<std::size_t>(stride) + static_cast<std::size_t>(c)] =
              random.chance(8) ? random.between32(-1, 0) : 1 + request[row] * columns + c;
  }

  /// Lets some columns name the block of another column of the same row or of another one, as shared prefixes do.
  void alias_blocks(Random& random, const Int32s& request) {
    for (Int32s& table : ids)
      for (std::int64_t i = random.between(1, 4); i > 0; --i) {
        const auto draw = [&] {
          return static_cast<std::size_t>(random.between(0, std::ssize(request) - 1) * stride +
                                          random.between(0, columns - 1));
        };
        table[draw()] = table[draw()];
      }
  }

  [[nodiscard]] std::vector<BlockTable> host_tables() const {
    std::vector<BlockTable> views;
    for (const Int32s& table : ids) views.push_back({table, stride, columns});
    return views;
  }

  /// Binds to new tables, now and then to stores that the engine has moved too.
  void bind(Random& random, AlignContext& context) {
    tables.clear();
    for (std::size_t g = 0; g < stores.size(); ++g)
      if (random.chance(30)) stores[g] = images[g].upload(Stream::default_stream());
    std::vector<AlignBinding> bindings;
    for (std::size_t g = 0; g < ids.size(); ++g) {
      tables.emplace_back(ids[g]);
      bindings.push_back({&stores[g], tables.back().data(), stride, columns});
    }
    context.bind(bindings);
  }
};

/// An array by request slot with the values of an array by row; other entries hold values that must not matter.
Int32s by_request(const Int32s& by_row, const Int32s& request, std::int32_t max_requests) {
  Int32s values(static_cast<std::size_t>(max_requests), -77'777);
  for (std::size_t row = 0; row < request.size(); ++row)
    if (request[row] >= 0) values[static_cast<std::size_t>(request[row])] = by_row[row];
  return values;
}

struct Rows {
  Int32s request, computed, scheduled, drafts, sampled, advanced;
  std::vector<std::uint8_t> decode;

  Rows(Random& random, const AlignOptions& options) {
    for (std::int32_t slot = 0; slot < options.max_requests; ++slot) {
      if (random.chance(15)) pad(-1 - slot);
      if (random.chance(85)) push(random, options, slot);
    }
    for (std::size_t row = 0; row < request.size(); ++row)
      advanced.push_back(computed[row] + scheduled[row] - drafts[row] + std::max(sampled[row], 1) - 1);
  }
  /// Fills a padded row with values that must not matter.
  void pad(std::int32_t slot) {
    request.push_back(slot);
    decode.push_back(1);
    for (Int32s* values : {&drafts, &computed, &scheduled, &sampled}) values->push_back(-1'000'000);
  }
  void push(Random& random, const AlignOptions& options, std::int32_t slot) {
    request.push_back(slot);
    decode.push_back(random.chance(70));
    drafts.push_back(decode.back() != 0 ? random.between32(0, options.drafts) : 0);
    computed.push_back(random.between32(0, 14));
    scheduled.push_back(drafts.back() + random.between32(1, decode.back() != 0 ? 1 : 9));
    sampled.push_back(random.between32(0, 1 + drafts.back()));
  }
  [[nodiscard]] AlignBatch batch() const { return {request, computed, scheduled, drafts}; }
};

/// The rows in the arrays that an engine has, on host and device: counts by row or by request slot, scheduled tokens or
/// where each row's tokens begin.
struct EngineArrays {
  Int32s computed, scheduled, query_start_loc, drafts, advanced;
  bool computed_by_request, drafts_by_request, cumulative;
  DeviceArray<std::int32_t> device_request, device_computed, device_scheduled, device_loc, device_drafts,
      device_advanced;

  EngineArrays(Random& random, const Rows& rows, std::int32_t max_requests)
      : computed_by_request(random.chance(40)),
        drafts_by_request(random.chance(40)),
        cumulative(random.chance(40)),
        device_request(rows.request),
        device_computed(computed = counts(rows.computed, rows, computed_by_request, max_requests)),
        device_scheduled(scheduled = rows.scheduled),
        device_loc(query_start_loc = start_loc(rows)),
        device_drafts(drafts = counts(rows.drafts, rows, drafts_by_request, max_requests)),
        device_advanced(advanced = counts(rows.advanced, rows, computed_by_request, max_requests)) {}

  static Int32s counts(const Int32s& by_row, const Rows& rows, bool wanted, std::int32_t max_requests) {
    return wanted ? by_request(by_row, rows.request, max_requests) : by_row;
  }
  /// Padded rows have no tokens.
  static Int32s start_loc(const Rows& rows) {
    Int32s loc = {5};
    for (std::size_t row = 0; row < rows.request.size(); ++row)
      loc.push_back(loc.back() + (rows.request[row] >= 0 ? rows.scheduled[row] : 0));
    return loc;
  }
  [[nodiscard]] AlignBatch host(const Rows& rows) const {
    AlignBatch batch{.request = rows.request,
                     .computed = computed,
                     .scheduled = scheduled,
                     .drafts = drafts,
                     .computed_by_request = computed_by_request,
                     .drafts_by_request = drafts_by_request};
    if (cumulative) batch.scheduled = {}, batch.query_start_loc = query_start_loc;
    return batch;
  }
  [[nodiscard]] AlignDeviceBatch device(const Rows& rows) {
    return {.request = device_request.data(),
            .computed = device_computed.data(),
            .scheduled = cumulative ? nullptr : device_scheduled.data(),
            .drafts = device_drafts.data(),
            .rows = static_cast<std::int32_t>(rows.request.size()),
            .query_start_loc = cumulative ? device_loc.data() : nullptr,
            .computed_by_request = computed_by_request,
            .drafts_by_request = drafts_by_request};
  }
};

/// Whether the planner takes both steps: it refuses tables in which one copy writes a block that another one reads.
bool takes(AlignPlanner planner, const Rows& rows, const std::vector<BlockTable>& tables) {
  try {
    static_cast<void>(planner.pre_step(rows.batch(), tables));
    planner.accept(rows.request, rows.sampled);
    static_cast<void>(planner.post_step(rows.batch(), tables));
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

/// Remembers or forgets some requests, on both sides.
void change_requests(Random& random, const AlignOptions& options, AlignPlanner& planner, AlignContext& context) {
  const Stream stream = Stream::default_stream();
  const auto any = [&] { return RequestIndex{random.between32(0, options.max_requests - 1)}; };
  if (random.chance(30)) {
    const RequestIndex added = any();
    const std::int32_t start = random.between32(0, 12);
    planner.add_request(added, start);
    context.add_request(stream, added, start);
  } else if (random.chance(20)) {
    std::vector<RequestIndex> gone;
    for (std::int64_t i = random.between(0, 3); i > 0; --i) gone.push_back(any());
    planner.forget({}, gone, {});
    context.forget(stream, gone);
  }
}

/// The counts of all blocks, in both parts, and of ids that are none.
void require_same_held(AlignContext& context, AlignPlanner& planner, std::int32_t group) {
  const Stream stream = Stream::default_stream();
  PublicationCheck& check = planner.publication(group);
  Int32s blocks = {-1, 0, check.blocks(), 1 << 30};
  Int32s conv(blocks.size(), -1), recurrent(blocks.size(), -1);
  for (std::int32_t block = 1; block < check.blocks(); ++block) {
    blocks.push_back(block);
    conv.push_back(static_cast<std::int32_t>(check.conv_tokens(BlockId{block})));
    recurrent.push_back(static_cast<std::int32_t>(check.recurrent_tokens(BlockId{block})));
  }
  DeviceArray ids(blocks), device_conv(Int32s(blocks.size(), 99)), device_recurrent(Int32s(blocks.size(), 99));
  const auto count = static_cast<std::int32_t>(blocks.size());
  context.gather_held(stream, group, ids.data(), count, device_conv.data(), device_recurrent.data());
  REQUIRE(from_device(device_conv.data(), blocks.size()) == conv);
  REQUIRE(from_device(device_recurrent.data(), blocks.size()) == recurrent);
}

/// Publishes some blocks with the counts that they hold, or others, as the planner's check does.
void require_same_publication(Random& random, AlignContext& context, AlignPlanner& planner) {
  const Stream stream = Stream::default_stream();
  const std::int32_t group = random.between32(0, planner.groups() - 1);
  PublicationCheck& check = planner.publication(group);
  const auto any = [&] { return random.between32(1, check.blocks() - 1); };
  Int32s blocks, tokens;
  std::vector<std::uint8_t> holds;
  for (int i = 0; i < 12; ++i) {
    blocks.push_back(any());
    const std::int64_t held = check.tokens(BlockId{blocks.back()});
    tokens.push_back(random.chance(60) ? static_cast<std::int32_t>(held) : random.between32(-1, 20));
    holds.push_back(check.publish(BlockId{blocks.back()}, tokens.back()) ? 1 : 0);
  }
  DeviceArray ids(blocks), counts(tokens);
  DeviceArray answers(std::vector<std::uint8_t>(blocks.size(), 7));
  context.verify_blocks(stream, group, ids.data(), counts.data(), static_cast<std::int32_t>(blocks.size()),
                        answers.data());
  REQUIRE(from_device(answers.data(), blocks.size()) == holds);
  // Blocks that the forward wrote itself, and blocks that got a new owner.
  const Int32s written = {any(), -1, 0, check.blocks()}, at = {random.between32(1, 30), 4, 4, 4};
  DeviceArray device_written(written), device_at(at);
  check.wrote(BlockId{written[0]}, at[0]);
  context.wrote_blocks(stream, group, device_written.data(), device_at.data(), 4);
  std::vector<BlockId> gone;
  for (std::int64_t i = random.between(0, 3); i > 0; --i) gone.emplace_back(any());
  for (const BlockId block : gone) check.forget(block);
  context.forget_blocks(stream, group, gone);
}

void require_same(AlignContext& context, AlignPlanner& planner, Scene& scene) {
  const auto requests = static_cast<std::size_t>(scene.options.max_requests);
  for (std::int32_t g = 0; g < planner.groups(); ++g) {
    REQUIRE(std::ranges::equal(from_device(context.columns(g), requests), planner.columns(g)));
    REQUIRE(std::ranges::equal(from_device(context.accepted(g), requests), planner.accepted(g)));
    require_same_held(context, planner, g);
    run_plan(scene.images[static_cast<std::size_t>(g)], planner.plan(g));
    REQUIRE(scene.images[static_cast<std::size_t>(g)].matches_device(Stream::default_stream()));
  }
  REQUIRE(from_device(context.skipped_parts(), 1)[0] == planner.skipped_parts());
}

}  // namespace

TEST_CASE("planner and context agree byte for byte on random batches") {
  // Four batches a seed, two steps a batch.
  constexpr std::uint64_t seeds = 2500;
  std::uint64_t ran = 0;
  std::uint64_t aliased = 0;
  test::for_each_seed(seeds, [&](Random& random, std::uint64_t) {
    ++ran;
    const Stream stream = Stream::default_stream();
    Scene scene(random);
    AlignPlanner planner(scene.options);
    AlignContext context(scene.options);
    for (int step = 0; step < 4; ++step) {
      const Rows rows(random, scene.options);
      change_requests(random, scene.options, planner, context);
      scene.draw_tables(random, rows.request);
      if (!rows.request.empty() && random.chance(70)) {
        const std::vector<Int32s> distinct = scene.ids;
        scene.alias_blocks(random, rows.request);
        const bool taken = takes(planner, rows, scene.host_tables());
        if (!taken) scene.ids = distinct;
        aliased += taken;
      }
      // The other modes move nothing, and need no binding.
      if (scene.options.mode == AlignMode::align || random.chance(50)) scene.bind(random, context);
      const std::vector<BlockTable> tables = scene.host_tables();
      EngineArrays arrays(random, rows, scene.options.max_requests);
      DeviceArray sampled(rows.sampled);
      const auto count = static_cast<std::int32_t>(rows.request.size());
      AlignDeviceBatch device = arrays.device(rows);

      static_cast<void>(planner.pre_step(arrays.host(rows), tables));
      context.pre_step(stream, device);
      require_same(context, planner, scene);

      planner.accept(rows.request, rows.sampled);
      context.scatter_accepted(stream, device.request, sampled.data(), count);
      if (random.chance(50)) {
        static_cast<void>(planner.post_step(arrays.host(rows), tables));
        context.post_step(stream, device);
      } else {
        static_cast<void>(planner.post_step_advanced(rows.request, rows.advanced, tables));
        device.computed = arrays.device_advanced.data();
        context.post_step_advanced(stream, device);
      }
      require_same(context, planner, scene);
      require_same_publication(random, context, planner);

      const std::int32_t padded = count + random.between32(0, 3);
      Int32s expected(static_cast<std::size_t>(padded));
      planner.gather_accepted(0, rows.request, expected);
      DeviceArray accepted(Int32s(static_cast<std::size_t>(padded), 99));
      DeviceArray draft_counts(Int32s(static_cast<std::size_t>(padded), 99));
      DeviceArray decode(rows.decode);
      context.gather_decode(stream, 0, device, decode.data(), padded, accepted.data(), draft_counts.data());
      REQUIRE(from_device(accepted.data(), expected.size()) == expected);
      for (std::size_t row = 0; row < expected.size(); ++row)
        expected[row] = row < rows.request.size() && rows.request[row] >= 0 && rows.decode[row] != 0 ? rows.drafts[row]
                                                                                                     : no_draft_count;
      REQUIRE(from_device(draft_counts.data(), expected.size()) == expected);
    }
  });
  if (ran >= 100) CHECK(aliased > ran * 2 / 5);
}
