// SPDX-License-Identifier: Apache-2.0
// AlignContext against AlignPlanner, which decides, and a serial reference, which moves: byte for byte, guard bands
// included.
#include <stateport/kernels/align_context.hpp>

#include <stateport/core/align_planner.hpp>
#include <stateport/core/error.hpp>

#include <doctest/doctest.h>

#include <deque>
#include <vector>

#include "launch_recorder.hpp"
#include "reference/slot_kernels.hpp"
#include "store_image.hpp"

using namespace stateport;
using test::Random;
using Int32s = std::vector<std::int32_t>;

namespace {

/// An array in device memory.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values)
      : buffer_(resource_, std::max<std::size_t>(1, values.size()) * sizeof(T)) {
    if (!values.empty()) copy_bytes(Stream::default_stream(), buffer_.data(), values.data(), values.size() * sizeof(T));
    Stream::default_stream().synchronize();
  }
  [[nodiscard]] T* data() { return buffer_.as<T>(); }

 private:
  DeviceResource resource_;
  Buffer buffer_;
};

template <class T>
std::vector<T> from_device(const T* data, std::size_t count) {
  std::vector<T> values(count);
  copy_bytes(Stream::default_stream(), values.data(), data, count * sizeof(T));
  Stream::default_stream().synchronize();
  return values;
}

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
  std::vector<Int32s> ids;
  std::deque<DeviceArray<std::int32_t>> tables;
  std::vector<AlignBinding> bindings;
  std::vector<BlockTable> host_tables;

  explicit Scene(Random& random) {
    options = {.drafts = random.between32(0, 3), .max_requests = random.between32(1, 5), .groups = {}};
    const std::int64_t groups = random.between(1, 3);
    const Stream stream = Stream::default_stream();
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int32_t blocks = options.max_requests * columns + 1;
      options.groups.push_back({.block_size_tokens = random.between32(1, 6), .blocks = blocks});
      std::vector<StateTensorSpec> tensors;
      const StateSpec drawn = test::random_spec(random);
      for (StateTensorSpec tensor : drawn.tensors()) {
        for (std::int64_t& extent : tensor.shape) extent = std::min<std::int64_t>(extent, 40);
        if (tensor.kind == StateKind::conv) tensor.shape[0] = options.drafts + random.between(1, 3);
        tensors.push_back(tensor);
      }
      images.emplace_back(random, StateSpec(tensors), test::ImageOptions{.slots = blocks});
      stores.push_back(images.back().upload(stream));
    }
  }

  /// Distinct blocks per row, some null or negative; two rows of one group may share a block that neither writes.
  void draw_tables(Random& random, std::size_t rows, const Int32s& request) {
    ids.clear();
    tables.clear();
    bindings.clear();
    host_tables.clear();
    const std::int64_t stride = columns + random.between(0, 2);
    for (std::size_t g = 0; g < options.groups.size(); ++g) {
      Int32s table(rows * static_cast<std::size_t>(stride), -5);
      for (std::size_t row = 0; row < rows; ++row)
        for (std::int32_t c = 0; c < columns && request[row] >= 0; ++c)
          table[row * static_cast<std::size_t>(stride) + static_cast<std::size_t>(c)] =
              random.chance(8) ? random.between32(-1, 0) : 1 + request[row] * columns + c;
      ids.push_back(table);
      tables.emplace_back(table);
      bindings.push_back({&stores[g], tables.back().data(), stride, columns});
    }
    for (const Int32s& table : ids) host_tables.push_back({table, stride, columns});
  }
};

struct Rows {
  Int32s request, computed, scheduled, drafts, sampled, advanced;
  std::vector<std::uint8_t> decode;

  Rows(Random& random, const AlignOptions& options) {
    for (std::int32_t slot = 0; slot < options.max_requests; ++slot) {
      if (random.chance(15)) push(random, options, -1 - slot);
      if (random.chance(85)) push(random, options, slot);
    }
    for (std::size_t row = 0; row < request.size(); ++row)
      advanced.push_back(computed[row] + scheduled[row] - drafts[row] + std::max(sampled[row], 1) - 1);
  }
  void push(Random& random, const AlignOptions& options, std::int32_t slot) {
    request.push_back(slot);
    decode.push_back(random.chance(70));
    drafts.push_back(decode.back() != 0 ? random.between32(0, options.drafts) : 0);
    computed.push_back(random.between32(0, 14));
    scheduled.push_back(drafts.back() + random.between32(1, decode.back() != 0 ? 1 : 9));
    sampled.push_back(random.between32(0, 1 + drafts.back()));
  }
};

void require_same(AlignContext& context, const AlignPlanner& planner, Scene& scene) {
  const auto requests = static_cast<std::size_t>(scene.options.max_requests);
  for (std::int32_t g = 0; g < planner.groups(); ++g) {
    REQUIRE(std::ranges::equal(from_device(context.columns(g), requests), planner.columns(g)));
    REQUIRE(std::ranges::equal(from_device(context.accepted(g), requests), planner.accepted(g)));
    run_plan(scene.images[static_cast<std::size_t>(g)], planner.plan(g));
    REQUIRE(scene.images[static_cast<std::size_t>(g)].matches_device(Stream::default_stream()));
  }
  REQUIRE(from_device(context.skipped_parts(), 1)[0] == planner.skipped_parts());
}

}  // namespace

TEST_CASE("planner and context agree byte for byte on random batches") {
  // Four batches a seed, two steps a batch.
  test::for_each_seed(2500, [](Random& random, std::uint64_t) {
    const Stream stream = Stream::default_stream();
    Scene scene(random);
    AlignPlanner planner(scene.options);
    AlignContext context(scene.options);
    for (int step = 0; step < 4; ++step) {
      const Rows rows(random, scene.options);
      scene.draw_tables(random, rows.request.size(), rows.request);
      context.bind(scene.bindings);
      const RequestId any{random.between32(0, scene.options.max_requests - 1)};
      if (random.chance(30)) {
        const std::int32_t start = random.between32(0, 12);
        planner.add_request(any, start);
        context.add_request(stream, any, start);
      } else if (random.chance(20)) {
        planner.forget(std::vector{any}, {}, {});
        context.forget(stream, any);
      }
      DeviceArray request(rows.request), computed(rows.computed), scheduled(rows.scheduled), drafts(rows.drafts),
          sampled(rows.sampled), advanced(rows.advanced);
      const auto count = static_cast<std::int32_t>(rows.request.size());
      const AlignBatch batch{rows.request, rows.computed, rows.scheduled, rows.drafts};
      AlignDeviceBatch device{request.data(), computed.data(), scheduled.data(), drafts.data(), count};

      static_cast<void>(planner.pre_step(batch, scene.host_tables));
      context.pre_step(stream, device);
      require_same(context, planner, scene);

      planner.accept(rows.request, rows.sampled);
      context.scatter_accepted(stream, request.data(), sampled.data(), count);
      if (random.chance(50)) {
        static_cast<void>(planner.post_step(batch, scene.host_tables));
        context.post_step(stream, device);
      } else {
        static_cast<void>(planner.post_step_advanced(rows.request, rows.advanced, scene.host_tables));
        device.computed = advanced.data();
        context.post_step_advanced(stream, device);
      }
      require_same(context, planner, scene);

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
}

TEST_CASE("a step is one launch without fence or allocation over all groups, requests and tensors") {
  const Stream stream = Stream::default_stream();
  DeviceResource resource;
  const StateSpec spec = StateSpec::uniform(3, {.window = 6, .dim = 64}, {.shape = {4, 8, 8}});
  const StateStore a(resource, spec, {.slots = 65});
  const StateStore b(resource, spec, {.slots = 65});
  AlignContext context({.drafts = 3,
                        .max_requests = 8,
                        .groups = {{.block_size_tokens = 4, .blocks = 65, .conv_window = 6},
                                   {.block_size_tokens = 8, .blocks = 65, .conv_window = 6}}});
  Int32s ids(64);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i) + 1;
  DeviceArray table(ids);
  context.bind(std::vector<AlignBinding>{{&a, table.data(), 8, 8}, {&b, table.data(), 8, 8}});
  std::vector<StagedRequest> staged;
  for (std::int32_t slot = 0; slot < 8; ++slot) {
    context.add_request(stream, RequestId{slot}, 15);
    staged.push_back({.request = slot, .computed = 15, .scheduled = 4, .drafts = 3, .prompt = 10});
  }
  const AlignDeviceBatch batch = context.stage(stream, staged);
  DeviceArray sampled(Int32s(8, 4));
  const test::LaunchRecorder recorder;
  context.pre_step(stream, batch);
  context.scatter_accepted(stream, batch.request, sampled.data(), batch.rows);
  context.post_step(stream, batch);
  CHECK(recorder.record().launches == std::vector<std::string>{"stateport::align_pre_step",
                                                               "stateport::scatter_accepted",
                                                               "stateport::align_post_step"});
  CHECK(recorder.record().fences == 0);
  CHECK(recorder.record().allocations == 0);
}

TEST_CASE("values are gathered by index and filled where an index names none") {
  const Stream stream = Stream::default_stream();
  DeviceArray index(Int32s{2, -1, 0, 3});
  DeviceArray values(Int32s{7, 8, 9});
  DeviceArray out(Int32s(4, 0));
  gather_by_index(stream, index.data(), values.data(), 3, 1, out.data(), 4);
  CHECK(from_device(out.data(), 4) == Int32s{9, 1, 7, 1});
  CHECK_THROWS_AS(gather_by_index(stream, nullptr, values.data(), 3, 1, out.data(), 4), InvalidArgument);
  CHECK_THROWS_AS(gather_by_index(stream, index.data(), values.data(), 3, 1, out.data(), -1), InvalidArgument);
}

TEST_CASE("a context refuses bindings and calls that do not fit") {
  const Stream stream = Stream::default_stream();
  DeviceResource resource;
  const AlignOptions options{
      .drafts = 1, .max_requests = 2, .groups = {{.block_size_tokens = 4, .blocks = 5, .conv_window = 4}}};
  AlignOptions all = options;
  all.mode = AlignMode::all;
  CHECK_THROWS_AS(AlignContext{all}, InvalidArgument);
  AlignContext context(options);
  const StateStore store(resource, StateSpec::uniform(1, {.window = 4, .dim = 8}, {}), {.slots = 5});
  const StateStore small(resource, StateSpec::uniform(1, {.window = 4, .dim = 8}, {}), {.slots = 4});
  const StateStore narrow(resource, StateSpec::uniform(1, {.window = 3, .dim = 8}, {}), {.slots = 5});
  DeviceArray table(Int32s(8, 1));
  const auto refused = [&](std::vector<AlignBinding> bindings) {
    CHECK_THROWS_AS(context.bind(bindings), InvalidArgument);
    CHECK_FALSE(context.bound());
  };
  refused({});
  refused({{nullptr, table.data(), 4, 4}});
  refused({{&store, nullptr, 4, 4}});
  refused({{&store, table.data(), 3, 4}});
  refused({{&store, table.data(), 4, 0}});
  refused({{&small, table.data(), 4, 4}});
  refused({{&narrow, table.data(), 4, 4}});
  AlignDeviceBatch batch{table.data(), table.data(), table.data(), table.data(), 1};
  CHECK_THROWS_AS(context.pre_step(stream, batch), InvalidArgument);
  context.bind(std::vector<AlignBinding>{{&store, table.data(), 4, 4}});
  CHECK(context.bound());
  batch.rows = -1;
  CHECK_THROWS_AS(context.pre_step(stream, batch), InvalidArgument);
  batch = {table.data(), nullptr, table.data(), table.data(), 1};
  CHECK_THROWS_AS(context.post_step(stream, batch), InvalidArgument);
  CHECK_THROWS_AS(context.add_request(stream, RequestId{2}, 0), InvalidArgument);
  CHECK_THROWS_AS(context.add_request(stream, RequestId{0}, -1), InvalidArgument);
  CHECK_THROWS_AS(context.forget(stream, RequestId{-1}), InvalidArgument);
  CHECK_THROWS_AS(context.fill_accepted(stream, table.data(), 3, 1), InvalidArgument);
  CHECK_THROWS_AS(context.scatter_accepted(stream, nullptr, table.data(), 1), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(context.columns(1)), InvalidArgument);
  const std::vector<StagedRequest> unknown = {{.request = 0}};
  CHECK_THROWS_AS(static_cast<void>(context.stage(stream, unknown)), InvalidArgument);
  const std::vector<StagedRequest> many(3, StagedRequest{.request = 0});
  CHECK_THROWS_AS(static_cast<void>(context.stage(stream, many)), InvalidArgument);
  context.unbind();
  CHECK_FALSE(context.bound());
}
