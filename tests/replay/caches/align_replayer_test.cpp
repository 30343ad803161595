// SPDX-License-Identifier: Apache-2.0
#include "caches/align_replayer.hpp"

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>

#include "workload/generator.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using namespace stateport;
using namespace stateport::replay;

namespace {

constexpr std::int32_t history = 3;

/// Moves symbols: a state is the names of the prefixes that end at its conv tokens, and that of the whole. Decides with
/// a planner of its own.
class SymbolicStates final : public AlignMover {
 public:
  SymbolicStates(const Workload& workload, const AlignReplayOptions& options)
      : drafts_(options.drafts),
        planner_({.drafts = options.drafts,
                  .max_requests = align_requests,
                  .groups = {{.block_size_tokens = static_cast<std::int32_t>(workload.block_size_tokens()),
                              .blocks = options.blocks + 1}}}),
        blocks_(static_cast<std::size_t>(options.blocks) + 1) {
    for (Block& block : blocks_) block.conv.resize(static_cast<std::size_t>(history + drafts_));
  }

  void add_request(RequestId request, std::int64_t computed) override { planner_.add_request(request, computed); }
  void forget(std::span<const RequestId> requests) override { planner_.forget(requests, {}, {}); }

  void step(const AlignStepView& view) override {
    std::vector<std::int32_t> request, computed, scheduled, drafts;
    for (const StagedRequest& row : view.rows) {
      request.push_back(row.request);
      computed.push_back(row.computed);
      scheduled.push_back(row.scheduled);
      drafts.push_back(*row.drafts);
    }
    const AlignBatch batch{request, computed, scheduled, drafts};
    const BlockTable table{view.block_table, view.columns, view.columns};
    static_cast<void>(planner_.pre_step(batch, {&table, 1}));
    copy_blocks();
    for (std::size_t i = 0; i < view.rows.size(); ++i) forward(view, i);
    planner_.accept(request, view.sampled);
    static_cast<void>(planner_.post_step(batch, {&table, 1}));
    copy_blocks();
  }
  bool remembers(std::span<const std::int32_t> columns, std::span<const std::int32_t> accepted) override {
    return std::ranges::equal(columns, planner_.columns(0)) && std::ranges::equal(accepted, planner_.accepted(0));
  }
  std::uint64_t check_restored(BlockId block, std::span<const Content> window) override {
    ++counts_.restores;
    return verify(block, window);
  }
  std::uint64_t check_published(BlockId block, std::span<const Content> window) override {
    ++counts_.commits;
    return verify(block, window);
  }
  [[nodiscard]] MoverCounts counts() const override { return counts_; }
  void spoil_all() {
    for (Block& block : blocks_) block.recurrent += 2;
  }
  std::int64_t wrong_reads = 0;

 private:
  struct Block {
    std::vector<Content> conv;
    Content recurrent = empty_content;
  };
  Block& at(std::int32_t block) {
    REQUIRE(block > null_block);
    return blocks_[static_cast<std::size_t>(block)];
  }

  void copy_blocks() {
    for (const SlotCopy& copy : planner_.plan(0)) {
      const Content recurrent = at(copy.recurrent_src_slot).recurrent;
      const std::vector<Content> conv = at(copy.src_slot).conv;
      std::copy(conv.begin() + copy.conv_shift, conv.end(), at(copy.dst_slot).conv.begin());
      at(copy.dst_slot).recurrent = recurrent;
    }
  }

  void forward(const AlignStepView& view, std::size_t i) {
    const StagedRequest& row = view.rows[i];
    const auto slot = static_cast<std::size_t>(row.request);
    const std::int32_t* const blocks =
        view.block_table.data() + static_cast<std::ptrdiff_t>(i) * view.columns + planner_.columns(0)[slot];
    const std::int32_t bias = accepted_bias(planner_.accepted(0)[slot]);
    if (row.computed > 0) {
      wrong_reads += at(blocks[bias]).recurrent != view.from[i];
      wrong_reads += at(blocks[0]).conv[static_cast<std::size_t>(bias + history - 1)] != view.from[i];
    }
    const auto window = view.window.subspan(i * static_cast<std::size_t>(history + drafts_));
    std::copy_n(window.begin(), history + *row.drafts, at(blocks[0]).conv.begin());
    for (std::int32_t j = 0; j <= *row.drafts; ++j)
      at(blocks[j]).recurrent = window[static_cast<std::size_t>(history - 1 + j)];
  }

  std::uint64_t verify(BlockId id, std::span<const Content> window) {
    REQUIRE(window.size() == history);
    const Block& block = at(id.value());
    std::uint64_t wrong = block.recurrent != window.back();
    for (std::size_t t = 0; t < window.size(); ++t) wrong += block.conv[t] != window[t];
    ++counts_.verified;
    counts_.mismatches += wrong != 0;
    return wrong;
  }

  std::int32_t drafts_;
  AlignPlanner planner_;
  std::vector<Block> blocks_;
  MoverCounts counts_;
};

}  // namespace

TEST_CASE("every block that is published or continued from holds its state, with any drafts and counters") {
  for (const WorkloadKind kind : {WorkloadKind::chat, WorkloadKind::agent, WorkloadKind::shared_prompt})
    for (const std::int64_t block_size : {16, 512})
      for (const std::int32_t drafts : {0, 1, 3})
        for (const bool asynchronous : {false, true}) {
          CAPTURE(static_cast<int>(kind));
          CAPTURE(block_size);
          CAPTURE(drafts);
          CAPTURE(asynchronous);
          const Workload workload = generate_workload({.kind = kind, .requests = 40, .block_size_tokens = block_size});
          const AlignReplayOptions options{
              .blocks = 90, .drafts = drafts, .asynchronous = asynchronous, .history_tokens = history};
          SymbolicStates states(workload, options);
          AlignReplayer replayer(workload, options, states);
          replayer.run([&](std::int64_t) {
            replayer.check_invariants();
            return true;
          });
          CHECK(replayer.counts().requests == 40);
          CHECK(replayer.counts().first_mismatch.empty());
          CHECK(states.wrong_reads == 0);
          CHECK(states.counts().mismatches == 0);
          CHECK(states.counts().restores == replayer.counts().requests_hit);
          CHECK(states.counts().commits > 0);
          const AlignCounts& align = replayer.align_counts();
          CHECK(align.steps_differ + align.skipped_parts + align.refused == 0);
          CHECK((align.drafts_proposed > 0) == (drafts > 0));
          CHECK(align.drafts_accepted <= align.drafts_proposed);
          CHECK(align.copies > 0);
        }
}

TEST_CASE("drafts are kept by the chance that was asked for, the same ones for a seed") {
  const Workload workload = generate_workload({.requests = 20});
  const auto kept = [&](double accept, std::uint64_t seed) {
    const AlignReplayOptions options{.blocks = 400, .drafts = 1, .accept = accept, .seed = seed};
    NoAlignStates none;
    AlignReplayer replayer(workload, options, none);
    replayer.run([](std::int64_t) { return true; });
    const AlignCounts& counts = replayer.align_counts();
    return static_cast<double>(counts.drafts_accepted) / static_cast<double>(counts.drafts_proposed);
  };
  CHECK(kept(0, 1) == 0);
  CHECK(kept(1, 1) == 1);
  CHECK(kept(0.4, 1) == doctest::Approx(0.4).epsilon(0.1));
  CHECK(kept(0.4, 1) == kept(0.4, 1));
  CHECK(kept(0.4, 1) != kept(0.4, 2));
}

TEST_CASE("answers are found again by the prompts that go on from them") {
  Workload workload(16);
  const std::vector<BlockIdentity> blocks = {1, 2, 3, 4, 5, 6};
  workload.add({.input_tokens = 20, .output_tokens = 60, .session = 1}, blocks);
  for (std::int64_t i = 0; i < align_requests; ++i) workload.add({.input_tokens = 100, .output_tokens = 1}, blocks);
  workload.add({.input_tokens = 97, .session = 1}, blocks);
  const AlignReplayOptions options{.blocks = 200, .drafts = 2, .history_tokens = history};
  SymbolicStates states(workload, options);
  AlignReplayer replayer(workload, options, states);
  replayer.run([](std::int64_t) { return true; });
  CHECK(replayer.counts().hit_tokens > 0);
  CHECK(states.counts().mismatches == 0);
}

TEST_CASE("a wrong state in align mode is named once, with its request and block") {
  const Workload workload = generate_workload({.requests = 40});
  const AlignReplayOptions options{.blocks = 400, .history_tokens = history};
  SymbolicStates states(workload, options);
  AlignReplayer replayer(workload, options, states);
  std::int64_t served = 0;
  replayer.run([&](std::int64_t now) {
    served = now;
    if (served == 12) states.spoil_all();
    return true;
  });
  CHECK(states.counts().mismatches > 0);
  CHECK(replayer.counts().first_mismatch.find("is not the state after") != std::string::npos);
}

TEST_CASE("a replay in align mode that is told to stop has the counts so far") {
  const Workload workload = generate_workload({.requests = 50});
  NoAlignStates none;
  AlignReplayer replayer(workload, {.blocks = 400, .drafts = 1}, none);
  replayer.run([](std::int64_t served) { return served < 20; });
  CHECK(replayer.counts().requests == 20);
  CHECK(replayer.counts().wall_seconds > 0);
  replayer.check_invariants();
}

TEST_CASE("a replay in align mode refuses options that cannot work") {
  const Workload workload = generate_workload({.requests = 2, .block_size_tokens = 8});
  NoAlignStates none;
  const auto refused = [&](const AlignReplayOptions& options) {
    CHECK_THROWS_AS(AlignReplayer(workload, options, none), InvalidArgument);
  };
  refused({.blocks = 31});
  refused({.blocks = 400, .drafts = -1});
  refused({.blocks = 400, .drafts = 4});  // a decode step of 5 tokens in blocks of 8
  refused({.blocks = 400, .accept = 1.1});
  refused({.blocks = 400, .accept = -0.1});
  refused({.blocks = 400, .history_tokens = 0});
  refused({.blocks = 400, .step_tokens_max = 7});
}
