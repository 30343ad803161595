// SPDX-License-Identifier: Apache-2.0
// The calls of AlignContext one by one: their launches, refusals and edge cases.
#include <stateport/backends/device.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/align_context.hpp>
#include <stateport/kernels/state_store.hpp>
#include <stateport/parts/align_planner.hpp>

#include "device_array.hpp"
#include "launch_recorder.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace stateport;
using test::DeviceArray;
using test::from_device;
using Int32s = std::vector<std::int32_t>;

namespace {

/// Eight requests at token 15 of two groups, whose next step moves states in both.
struct Eight {
  Stream stream = Stream::default_stream();
  DeviceResource resource;
  StateSpec spec = StateSpec::uniform(3, {.window = 6, .dim = 64}, {.shape = {4, 8, 8}});
  StateStore a{resource, spec, {.slots = 65}};
  StateStore b{resource, spec, {.slots = 65}};
  AlignContext context{{.drafts = 3,
                        .max_requests = 8,
                        .groups = {{.block_size_tokens = 4, .blocks = 65, .conv_window = 6},
                                   {.block_size_tokens = 8, .blocks = 65, .conv_window = 6}}}};
  DeviceArray<std::int32_t> table{ids()};
  std::vector<StagedRequest> staged;

  Eight() {
    for (std::int32_t slot = 0; slot < 8; ++slot)
      staged.push_back({.request = RequestIndex{slot}, .computed = 15, .scheduled = 4, .drafts = 3, .prompt = 10});
  }
  static Int32s ids() {
    Int32s ids(64);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i) + 1;
    return ids;
  }
  void bind() { context.bind(std::vector<AlignBinding>{{&a, table.data(), 8, 8}, {&b, table.data(), 8, 8}}); }
  void add_all() {
    for (std::int32_t slot = 0; slot < 8; ++slot) context.add_request(stream, RequestIndex{slot}, 15);
  }
};

/// Checks the launches of a call, which must not fence or allocate.
template <class Call>
std::vector<std::string> launches_of(Call&& call) {
  const test::LaunchRecorder recorder;
  call();
  CHECK(recorder.record().fences == 0);
  CHECK(recorder.record().allocations == 0);
  return recorder.record().launches;
}

using Labels = std::vector<std::string>;

}  // namespace

TEST_CASE("every call is one launch without fence or allocation over all groups, requests and tensors") {
  Eight e;
  e.bind();
  DeviceArray sampled(Int32s(8, 4)), advanced(Int32s(8, 19)), accepted(Int32s(9)), draft_counts(Int32s(9));
  DeviceArray decode(std::vector<std::uint8_t>(8, 1));
  const std::vector<RequestIndex> some = {RequestIndex{7}, RequestIndex{3}, RequestIndex{7}};
  // The second round is warm.
  for (int round = 0; round < 2; ++round) {
    AlignDeviceBatch batch;
    CHECK(launches_of([&] { e.add_all(); }) == Labels(8, "stateport::align_add_request"));
    CHECK(launches_of([&] { batch = e.context.stage(e.stream, e.staged); }).empty());
    CHECK(launches_of([&] { e.context.pre_step(e.stream, batch); }) == Labels{"stateport::align_pre_step"});
    CHECK(launches_of([&] {
            e.context.gather_decode(e.stream, 1, batch, decode.data(), 9, accepted.data(), draft_counts.data());
          }) == Labels{"stateport::gather_decode"});
    CHECK(launches_of([&] { e.context.scatter_accepted(e.stream, batch.request, sampled.data(), 8); }) ==
          Labels{"stateport::scatter_accepted"});
    CHECK(launches_of([&] { e.context.post_step(e.stream, batch); }) == Labels{"stateport::align_post_step"});
    CHECK(launches_of([&] { e.context.fill_accepted(e.stream, batch.request, 4, 8); }) ==
          Labels{"stateport::scatter_accepted"});
    batch.computed = advanced.data();
    CHECK(launches_of([&] { e.context.post_step_advanced(e.stream, batch); }) == Labels{"stateport::align_post_step"});
    CHECK(launches_of([&] { e.context.forget(e.stream, some); }) == Labels{"stateport::align_forget"});
    CHECK(launches_of([&] { gather_by_index(e.stream, batch.request, sampled.data(), 8, 1, accepted.data(), 8); }) ==
          Labels{"stateport::gather_by_index"});
  }
  CHECK(from_device(e.context.skipped_parts(), 1)[0] == 0);
}

TEST_CASE("a step with nothing to move is at most one launch") {
  Eight e;
  e.bind();
  for (StagedRequest& row : e.staged) row = {.request = row.request, .computed = 13, .scheduled = 1, .prompt = 10};
  for (std::int32_t slot = 0; slot < 8; ++slot) e.context.add_request(e.stream, RequestIndex{slot}, 13);
  const AlignDeviceBatch batch = e.context.stage(e.stream, e.staged);
  CHECK(launches_of([&] { e.context.pre_step(e.stream, batch); }).size() <= 1);
  CHECK(launches_of([&] { e.context.post_step(e.stream, batch); }).size() <= 1);
  CHECK(launches_of([&] { e.context.pre_step(e.stream, {.rows = 0}); }).empty());
}

TEST_CASE("requests are remembered before anything is bound, and many are forgotten at once") {
  constexpr std::int32_t requests = 150;
  const Stream stream = Stream::default_stream();
  AlignContext context({.drafts = 1,
                        .max_requests = requests,
                        .groups = {{.block_size_tokens = 4, .blocks = 5}, {.block_size_tokens = 3, .blocks = 5}}});
  std::vector<RequestIndex> even;
  Int32s expected(requests, forgotten_column);
  for (std::int32_t slot = 0; slot < requests; ++slot) {
    context.add_request(stream, RequestIndex{slot}, slot);
    if (slot % 2 == 0) even.emplace_back(slot);
    if (slot % 2 != 0) expected[static_cast<std::size_t>(slot)] = seed_column(slot, 3);
  }
  CHECK(launches_of([&] { context.forget(stream, even); }) == Labels(2, "stateport::align_forget"));
  CHECK(launches_of([&] { context.forget(stream, {}); }).empty());
  CHECK(from_device(context.columns(1), requests) == expected);
  CHECK(from_device(context.accepted(1), requests) == Int32s(requests, 1));
  const StagedRequest forgotten{.request = even.back(), .computed = 4, .scheduled = 1};
  CHECK_THROWS_AS(static_cast<void>(context.stage(stream, {&forgotten, 1})), InvalidArgument);
  // One that is out of range: nothing is forgotten.
  const std::vector<RequestIndex> bad = {RequestIndex{1}, RequestIndex{requests}};
  CHECK_THROWS_AS(context.forget(stream, bad), InvalidArgument);
  CHECK(from_device(context.columns(1), requests) == expected);
}

TEST_CASE("accepted counts are filled with one number, at least 1, for the rows of a batch alone") {
  Eight e;
  DeviceArray request(Int32s{5, -1, 2, 8});
  e.context.fill_accepted(e.stream, request.data(), 4, 4);
  for (std::int32_t group = 0; group < 2; ++group)
    CHECK(from_device(e.context.accepted(group), 8) == Int32s{1, 1, 4, 1, 1, 4, 1, 1});
  e.context.fill_accepted(e.stream, request.data(), 0, 1);
  CHECK(from_device(e.context.accepted(0), 8) == Int32s{1, 1, 4, 1, 1, 1, 1, 1});
}

TEST_CASE("without drafts no call needs an array of them, and with them each does") {
  const Stream stream = Stream::default_stream();
  DeviceArray numbers(Int32s{1, 0}), accepted(Int32s(3, 9)), draft_counts(Int32s(3, 9));
  DeviceArray decode(std::vector<std::uint8_t>{1, 0});
  const AlignDeviceBatch batch{
      .request = numbers.data(), .computed = numbers.data(), .scheduled = numbers.data(), .rows = 2};
  const auto gather = [&](std::int32_t drafts) {
    AlignContext context({.drafts = drafts, .max_requests = 2, .groups = {{.block_size_tokens = 4, .blocks = 5}}});
    context.gather_decode(stream, 0, batch, decode.data(), 3, accepted.data(), draft_counts.data());
  };
  gather(0);
  CHECK(from_device(accepted.data(), 3) == Int32s{1, 1, 1});
  CHECK(from_device(draft_counts.data(), 3) == Int32s{0, no_draft_count, no_draft_count});
  CHECK_THROWS_AS(gather(1), InvalidArgument);
}

TEST_CASE("a device count beyond 1 + K moves nothing and is counted") {
  Eight e;
  e.bind();
  e.add_all();
  DeviceArray sampled(Int32s(8, 5));  // K is 3
  const AlignDeviceBatch batch = e.context.stage(e.stream, e.staged);
  e.context.scatter_accepted(e.stream, batch.request, sampled.data(), 8);
  e.context.pre_step(e.stream, batch);
  CHECK(from_device(e.context.skipped_parts(), 1)[0] == 2 * 2 * 8);
}

TEST_CASE("a post-step of a request that is not remembered moves nothing and is counted") {
  Eight e;
  e.bind();
  e.add_all();
  for (StagedRequest& row : e.staged) row.computed = 13;  // keeps 17 tokens: the boundary at 16 has bias 2
  const AlignDeviceBatch batch = e.context.stage(e.stream, e.staged);
  for (std::int32_t slot = 0; slot < 8; ++slot) e.context.forget(e.stream, std::vector{RequestIndex{slot}});
  e.context.fill_accepted(e.stream, batch.request, 4, 8);
  e.context.post_step(e.stream, batch);
  CHECK(from_device(e.context.skipped_parts(), 1)[0] == 2 * 2 * 8);
}

TEST_CASE("a step neither reads nor writes a block behind those of the group") {
  const Stream stream = Stream::default_stream();
  DeviceResource resource;
  const StateStore store(resource, StateSpec::uniform(1, {.window = 4, .dim = 8}, {.shape = {4, 8, 8}}), {.slots = 6});
  for (const Int32s& ids : {Int32s{5, 2}, Int32s{2, 5}}) {
    AlignContext context({.max_requests = 1, .groups = {{.block_size_tokens = 4, .blocks = 5, .conv_window = 4}}});
    DeviceArray table(ids);
    context.bind(std::vector<AlignBinding>{{&store, table.data(), 2, 2}});
    context.add_request(stream, RequestIndex{0}, 4);
    const std::vector<StagedRequest> row = {{.request = RequestIndex{0}, .computed = 4, .scheduled = 4, .prompt = 9}};
    context.pre_step(stream, context.stage(stream, row));
    CHECK(from_device(context.skipped_parts(), 1)[0] == 2);
  }
}

TEST_CASE("addresses in the upper half of the range are only numbers to the tables and the decisions") {
  // No such memory can be had on this platform, so no row of this batch has a block to read or write. Where memory of
  // the host is out of reach, the context refuses it.
  if (!backend_info().host_reads_device_memory) return;
  auto* const upper = reinterpret_cast<std::byte*>(std::uintptr_t{0xffff'8000'0000'0000});
  const std::vector<StateTensorView> tensors = {
      {.spec = {.kind = StateKind::recurrent, .shape = {64, 64, 64}}, .base = upper, .slot_stride_bytes = 1 << 30}};
  const StateStore store = StateStore::view(tensors, 1000);
  CHECK(store.tensors()[0].slot_data(SlotId{999}) == upper + 999 * (std::int64_t{1} << 30));
  const Stream stream = Stream::default_stream();
  AlignContext context({.max_requests = 1, .groups = {{.block_size_tokens = 4, .blocks = 1000}}});
  DeviceArray nulls(Int32s(8, null_block));
  context.bind(std::vector<AlignBinding>{{&store, nulls.data(), 8, 8}});
  context.add_request(stream, RequestIndex{0}, 4);
  const std::vector<StagedRequest> row = {{.request = RequestIndex{0}, .computed = 4, .scheduled = 4, .prompt = 9}};
  context.pre_step(stream, context.stage(stream, row));
  CHECK(from_device(context.columns(0), 1) == Int32s{1});
  CHECK(from_device(context.skipped_parts(), 1)[0] == 2);
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

TEST_CASE("a context refuses more requests than its launches count") {
  AlignOptions options{.drafts = 3, .max_requests = INT32_MAX / 2, .groups = {{.block_size_tokens = 4, .blocks = 5}}};
  CHECK_THROWS_AS(AlignContext{options}, InvalidArgument);
  options.max_requests = INT32_MAX;  // twice as many rows are no 32-bit count
  options.drafts = 0;
  CHECK_THROWS_AS(AlignContext{options}, InvalidArgument);
}

TEST_CASE("a context refuses bindings and calls that do not fit") {
  const Stream stream = Stream::default_stream();
  DeviceResource resource;
  const AlignOptions options{
      .drafts = 1, .max_requests = 2, .groups = {{.block_size_tokens = 4, .blocks = 5, .conv_window = 4}}};
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
  refused({{&store, table.data(), 4, 4}, {&store, table.data(), 4, 4}});
  AlignDeviceBatch batch{table.data(), table.data(), table.data(), table.data(), 1};
  CHECK_THROWS_AS(context.pre_step(stream, batch), InvalidState);
  context.bind(std::vector<AlignBinding>{{&store, table.data(), 4, 4}});
  CHECK(context.bound());
  for (const std::int32_t rows : {-1, 5}) {
    batch.rows = rows;
    CHECK_THROWS_AS(context.pre_step(stream, batch), InvalidArgument);
  }
  batch = {table.data(), nullptr, table.data(), table.data(), 1};
  CHECK_THROWS_AS(context.post_step(stream, batch), InvalidArgument);
  batch = {table.data(), table.data(), nullptr, table.data(), 1};
  CHECK_THROWS_AS(context.pre_step(stream, batch), InvalidArgument);
  batch = {table.data(), table.data(), table.data(), nullptr, 1};
  CHECK_THROWS_AS(context.post_step(stream, batch), InvalidArgument);  // it has drafts
  batch = {table.data(), table.data(), table.data(), table.data(), 1};
  batch.query_start_loc = table.data();
  CHECK_THROWS_AS(context.pre_step(stream, batch), InvalidArgument);
  CHECK_THROWS_AS(context.add_request(stream, RequestIndex{2}, 0), InvalidArgument);
  CHECK_THROWS_AS(context.add_request(stream, RequestIndex{0}, -1), InvalidArgument);
  CHECK_THROWS_AS(context.add_request(stream, RequestIndex{0}, std::int64_t{1} << 31), InvalidArgument);
  CHECK_THROWS_AS(context.forget(stream, std::vector{RequestIndex{-1}}), InvalidArgument);
  CHECK_THROWS_AS(context.fill_accepted(stream, table.data(), 3, 1), InvalidArgument);
  CHECK_THROWS_AS(context.scatter_accepted(stream, nullptr, table.data(), 1), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(context.columns(1)), InvalidArgument);
  const std::vector<StagedRequest> unknown = {{.request = RequestIndex{0}}};
  CHECK_THROWS_AS(static_cast<void>(context.stage(stream, unknown)), InvalidArgument);
  const std::vector<StagedRequest> many(3, StagedRequest{.request = RequestIndex{0}});
  CHECK_THROWS_AS(static_cast<void>(context.stage(stream, many)), InvalidArgument);
  const auto not_staged = [&](const StagedRequest& row) {
    CHECK_THROWS_AS(static_cast<void>(context.stage(stream, {&row, 1})), InvalidArgument);
  };
  context.add_request(stream, RequestIndex{0}, 0);
  not_staged({.request = RequestIndex{0}, .scheduled = 3, .drafts = 2});  // K is 1
  not_staged({.request = RequestIndex{0}, .scheduled = 0, .drafts = 1});
  not_staged({.request = RequestIndex{0}, .scheduled = 1, .drafts = -1});
  not_staged({.request = RequestIndex{2}, .scheduled = 1});
  const std::vector<StagedRequest> twice(2, StagedRequest{.request = RequestIndex{0}, .scheduled = 1});
  CHECK_THROWS_AS(static_cast<void>(context.stage(stream, twice)), InvalidArgument);
  CHECK(context.stage(stream, std::span(twice).first(1)).rows == 1);
  context.unbind();
  CHECK_FALSE(context.bound());
  CHECK_THROWS_AS(context.post_step(stream, batch), InvalidState);
}

TEST_CASE("modes none and all remember without a binding, and launch only the update of their memory") {
  for (const AlignMode mode : {AlignMode::none, AlignMode::all}) {
    const Stream stream = Stream::default_stream();
    AlignContext context({.mode = mode,
                          .drafts = 2,
                          .max_requests = 3,
                          .groups = {{.block_size_tokens = 4, .blocks = 5}, {.block_size_tokens = 8, .blocks = 5}}});
    context.add_request(stream, RequestIndex{0}, 9);
    context.add_request(stream, RequestIndex{2}, 9);
    DeviceArray request(Int32s{2, -1, 0}), computed(Int32s{9, 9, 9}), loc(Int32s{0, 3, 3, 4}), drafts(Int32s{2, 0, 0}),
        sampled(Int32s{3, 9, 0});
    const AlignDeviceBatch batch{.request = request.data(),
                                 .computed = computed.data(),
                                 .drafts = drafts.data(),
                                 .rows = 3,
                                 .query_start_loc = loc.data()};
    CHECK(launches_of([&] { context.pre_step(stream, batch); }).empty());
    context.scatter_accepted(stream, request.data(), sampled.data(), 3);
    CHECK(from_device(context.accepted(1), 3) == Int32s{1, 1, 3});
    DeviceArray beyond(Int32s{3});
    context.scatter_accepted(stream, beyond.data(), sampled.data(), 1);
    CHECK(from_device(context.src_columns(0), 3) == Int32s(3, no_column));
    const bool all = mode == AlignMode::all;
    CHECK(launches_of([&] { context.post_step(stream, batch); }) ==
          (all ? Labels{"stateport::align_post_step"} : Labels{}));
    // Request 2 has 1 + K query tokens up to token 12; request 0 has one.
    CHECK(from_device(context.columns(0), 3) ==
          (all ? Int32s{no_column, forgotten_column, 2} : Int32s{2, forgotten_column, 2}));
    CHECK(from_device(context.columns(1), 3) ==
          (all ? Int32s{no_column, forgotten_column, 1} : Int32s{1, forgotten_column, 1}));
    CHECK(launches_of([&] { context.post_step_advanced(stream, batch); }).empty());
    CHECK(from_device(context.accepted(0), 3) == Int32s{1, 1, 3});
  }
}

TEST_CASE("a block is verified from the counts that steps of the device left, without a look at the host") {
  Eight e;
  e.bind();
  e.add_all();
  // Tokens 15 … 18, all three drafts kept: 19 tokens. The boundary at 16 is 0 tokens past the running state.
  const AlignDeviceBatch batch = e.context.stage(e.stream, e.staged);
  e.context.pre_step(e.stream, batch);
  e.context.fill_accepted(e.stream, batch.request, 4, 8);
  // Request 2 has blocks 17 … 24. In group 0, columns 3 (16 tokens) and 4 … 7 matter.
  DeviceArray blocks(Int32s{20, 20, 20, 21, 0, 65, -3}), tokens(Int32s{16, 15, 0, 19, 16, 16, 16}), conv(Int32s(7, 5)),
      recurrent(Int32s(7, 5));
  DeviceArray holds(std::vector<std::uint8_t>(7, 9));
  using Bytes = std::vector<std::uint8_t>;
  const auto verified = [&] {
    e.context.verify_blocks(e.stream, 0, blocks.data(), tokens.data(), 7, holds.data());
    return from_device(holds.data(), 7);
  };
  CHECK(verified() == Bytes(7, 0));  // no step has written yet
  e.context.post_step(e.stream, batch);
  CHECK(verified() == Bytes{1, 0, 0, 0, 0, 0, 0});
  e.context.gather_held(e.stream, 0, blocks.data(), 7, conv.data(), recurrent.data());
  // The running state was written in column 4 (block 21), each kept draft in the columns behind it.
  CHECK(from_device(conv.data(), 7) == Int32s{16, 16, 16, 16, -1, -1, -1});
  CHECK(from_device(recurrent.data(), 7) == Int32s{16, 16, 16, 16, -1, -1, -1});
  e.context.forget_blocks(e.stream, 0, std::vector{BlockId{20}});
  CHECK(verified() == Bytes(7, 0));
  e.context.wrote_blocks(e.stream, 0, blocks.data(), tokens.data(), 1);
  CHECK(verified() == Bytes{1, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("a device count beyond 1 + K makes the states of a forward unknown") {
  Eight e;
  e.bind();
  e.add_all();
  DeviceArray sampled(Int32s(8, 5));  // K is 3
  const AlignDeviceBatch batch = e.context.stage(e.stream, e.staged);
  e.context.pre_step(e.stream, batch);
  e.context.scatter_accepted(e.stream, batch.request, sampled.data(), 8);
  e.context.post_step(e.stream, batch);
  DeviceArray blocks(Int32s{21, 22}), conv(Int32s(2, 5)), recurrent(Int32s(2, 5));
  e.context.gather_held(e.stream, 0, blocks.data(), 2, conv.data(), recurrent.data());
  CHECK(from_device(conv.data(), 2) == Int32s(2, -1));
  CHECK(from_device(recurrent.data(), 2) == Int32s(2, -1));
}

TEST_CASE("a context answers about blocks only for arrays and groups that exist") {
  Eight e;
  DeviceArray ids(Int32s(2, 1)), out(Int32s(2, 1));
  DeviceArray holds(std::vector<std::uint8_t>(2, 1));
  CHECK_THROWS_AS(e.context.gather_held(e.stream, 2, ids.data(), 2, out.data(), out.data()), InvalidArgument);
  CHECK_THROWS_AS(e.context.gather_held(e.stream, 0, ids.data(), -1, out.data(), out.data()), InvalidArgument);
  CHECK_THROWS_AS(e.context.gather_held(e.stream, 0, nullptr, 2, out.data(), out.data()), InvalidArgument);
  CHECK_THROWS_AS(e.context.gather_held(e.stream, 0, ids.data(), 2, out.data(), nullptr), InvalidArgument);
  CHECK_THROWS_AS(e.context.verify_blocks(e.stream, -1, ids.data(), ids.data(), 2, holds.data()), InvalidArgument);
  CHECK_THROWS_AS(e.context.verify_blocks(e.stream, 0, ids.data(), nullptr, 2, holds.data()), InvalidArgument);
  CHECK_THROWS_AS(e.context.wrote_blocks(e.stream, 0, nullptr, ids.data(), 2), InvalidArgument);
  CHECK_THROWS_AS(e.context.wrote_blocks(e.stream, 0, ids.data(), ids.data(), -2), InvalidArgument);
  for (const BlockId bad : {BlockId{-1}, BlockId{65}}) {
    const std::vector<BlockId> blocks = {BlockId{1}, bad};
    CHECK_THROWS_AS(e.context.forget_blocks(e.stream, 0, blocks), InvalidArgument);
  }
  std::vector<BlockId> many;
  for (std::int32_t i = 0; i < 130; ++i) many.emplace_back(1 + i % 64);
  CHECK(launches_of([&] { e.context.forget_blocks(e.stream, 0, many); }) ==
        Labels(3, "stateport::align_forget_blocks"));
  CHECK(launches_of([&] { e.context.verify_blocks(e.stream, 0, ids.data(), ids.data(), 2, holds.data()); }) ==
        Labels{"stateport::align_verify_blocks"});
}

TEST_CASE("a context refuses a window that a bias of K tokens would empty, and the planner's bad options") {
  DeviceResource resource;
  AlignOptions options{.drafts = 4, .max_requests = 2, .groups = {{.block_size_tokens = 4, .blocks = 5}}};
  AlignContext context(options);
  const StateStore store(resource, StateSpec::uniform(1, {.window = 4, .dim = 8}, {}), {.slots = 5});
  DeviceArray table(Int32s(8, 1));
  CHECK_THROWS_AS(context.bind(std::vector<AlignBinding>{{&store, table.data(), 4, 4}}), InvalidArgument);
  options.groups[0].block_size_tokens = 0;
  CHECK_THROWS_AS(AlignContext{options}, InvalidArgument);
  options.groups.clear();
  CHECK_THROWS_AS(AlignContext{options}, InvalidArgument);
}
