// SPDX-License-Identifier: Apache-2.0
// Cases of speculative commit: step selection, masked gather-scatter, strip windows, tracking copies, depths.
#include <stateport/core/pool/copy_plan.hpp>
#include <stateport/parts/speculative_rules.hpp>

#include "families.hpp"
#include "limits.hpp"

#include <vector>

namespace stateport::conformance {
namespace {

using Int32s = std::vector<std::int32_t>;

void spec_step_select(const Json& row) {
  const std::int32_t draft_tokens = row.at("draft_token_num");
  const auto accept_index = row.at("accept_index").get<std::vector<Int32s>>();
  const auto accepted = row.at("accept_lens").get<Int32s>();
  const bool tracks = !row.at("seq_lens").is_null();
  Int32s last;
  Int32s track;
  for (std::size_t b = 0; b < accepted.size(); ++b) {
    const auto batch_row = static_cast<std::int64_t>(b);
    const Int32s& index = accept_index.at(b);
    require_in("accept_lens", accepted[b], 0, std::ssize(index));
    last.push_back(last_accepted_step(index.data(), accepted[b], batch_row, draft_tokens));
    if (tracks)
      track.push_back(tracked_step(index.data(), accepted[b], batch_row, draft_tokens, row.at("seq_lens").at(b),
                                   row.at("track_interval")));
  }
  expect_equal(last, row.at("last_step"), "last_step");
  expect_equal(tracks ? Json(track) : Json(), row.at("track_step"), "track_step");
}

/// dst [layers, slots, …], src [layers, requests, steps, …].
void masked_gather_scatter(const Json& row) {
  Json dst = row.at("dst");
  const Json& src = row.at("src");
  const auto slots = row.at("slots").get<Int32s>();
  const auto steps = row.at("steps").get<Int32s>();
  for (std::size_t layer = 0; layer < dst.size(); ++layer)
    for (std::size_t b = 0; b < slots.size(); ++b)
      if (commits(steps.at(b), slots[b], static_cast<std::int32_t>(dst[layer].size())))
        dst[layer][static_cast<std::size_t>(slots[b])] = src.at(layer).at(b).at(static_cast<std::size_t>(steps[b]));
  expect_equal(dst, row.at("expect"), "dst");
}

/// Window t of a strip is its tokens [t, t + W).
void conv_window(const Json& row) {
  const auto dim = row.at("dim").get<std::size_t>();
  const auto window = row.at("kernel_minus_1").get<std::size_t>();
  const auto step = row.at("step").get<std::size_t>();
  const bool channel_major = row.at("major") == "channel";
  Json committed = Json::array();
  for (std::size_t r = 0; r < (channel_major ? dim : window); ++r) {
    committed.push_back(Json::array());
    for (std::size_t c = 0; c < (channel_major ? window : dim); ++c)
      committed[r].push_back(row.at("phys").at(channel_major ? r : c).at(step + (channel_major ? c : r)));
  }
  expect_equal(committed, row.at("committed_conv_state"), "committed conv state");
}

void track_copy(const Json& row) {
  Json pool = row.at("pool");
  const auto slots = static_cast<std::int32_t>(pool.size());
  std::vector<SlotCopy> plan;
  for (std::size_t i = 0; i < row.at("src").size(); ++i)
    if (row.at("mask").at(i).get<bool>()) plan.push_back(SlotCopy::whole(row.at("src").at(i), row.at("dst").at(i)));
  // A skipped copy takes no part in the check for chains.
  std::erase_if(plan, [](const SlotCopy& copy) { return copy.src_slot < 0 || copy.dst_slot < 0; });
  validate(plan, slots, slots, true);
  for (const SlotCopy& copy : plan)
    pool[static_cast<std::size_t>(copy.dst_slot)] = pool[static_cast<std::size_t>(copy.src_slot)];
  expect_equal(pool, row.at("expect"), "pool");
}

void checkpoint_depth(const Json& row) {
  const Json& branching = row.at("branching");
  const PrefillDepth got = prefill_checkpoint_depth({.prefix = row.at("prefix_len"),
                                                     .extend = row.at("extend_len"),
                                                     .chunk = row.at("chunk"),
                                                     .page = row.at("tree_page"),
                                                     .branching = branching.is_null() ? -1 : branching.get<int>()});
  const Json result = {
      {"track", got.track}, {"kernel_seqlen", got.kernel_tokens}, {"depth", got.track ? Json(got.depth) : Json()}};
  expect_equal(result, row.at("expect"), "depth");
}

}  // namespace

void run_speculative_cases(const Json& rows, Report& report) {
  const std::map<std::string, void (*)(const Json&)> kinds = {
      {"spec_step_select", &spec_step_select},
      {"masked_gather_scatter", &masked_gather_scatter},
      {"conv_window", &conv_window},
      {"track_copy", &track_copy},
      {"prefill_checkpoint_depth", &checkpoint_depth},
      {"grid",
       [](const Json& row) { expect_equal(checkpoint_grid(row.at("page"), row.at("chunk")), row.at("lcm"), "lcm"); }}};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string kind = rows[i].at("kind");
    report.run_case(kind + " " + std::to_string(i), [&] { kinds.at(kind)(rows[i]); });
  }
}

}  // namespace stateport::conformance
