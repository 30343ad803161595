// SPDX-License-Identifier: Apache-2.0
// Suites of single rules around the slot allocator: checkpoint offsets, matching and skipping, sizing, resharding.
#include <stateport/core/model/error.hpp>
#include <stateport/core/pool/block_pool.hpp>
#include <stateport/core/slots/prefix_matcher.hpp>
#include <stateport/parts/checkpoint_budget.hpp>
#include <stateport/parts/checkpoint_planner.hpp>
#include <stateport/parts/reshard.hpp>

#include "families.hpp"
#include "slot_replay.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

namespace stateport::conformance {
namespace {

std::string case_name(const Json& row, std::size_t index) {
  return row.contains("name") ? row.at("name").get<std::string>() : "row " + std::to_string(index);
}

void offsets(const Json& rows, Report& report) {
  for (std::size_t i = 0; i < rows.size(); ++i)
    report.run_case(case_name(rows[i], i), [&] {
      const Json& row = rows[i];
      constexpr std::int32_t first_id = 100;  // "block j of the request has id 100+j"
      const auto block_size = row.at("block_size").get<std::int32_t>();
      const auto prompt = row.at("prompt_len").get<std::int64_t>();
      const auto count = static_cast<std::int32_t>(prompt / block_size) + 1;
      std::vector<BlockId> blocks;
      for (std::int32_t j = 0; j < count; ++j) blocks.emplace_back(first_id + j);
      const std::vector<PrefixHash> prefixes(blocks.size());
      BlockPool pool({.blocks = first_id + count + 1});
      SlotPool slots(1);
      SlotAllocator states(slots, pool);
      CheckpointPlanner planner(states, {.block_size_tokens = block_size,
                                         .alignment_tokens = row.at("alignment").get<std::int32_t>(),
                                         .max_rows = 1});
      const PlannedCheckpoints planned = planner.plan(chunk_of(row, 0, SlotId{0}, blocks, prefixes));
      expect_equal(planned_json(planned, planner.has_any()), row.at("expect"), "plan");
      planner.check_invariants();
    });
}

/// The safe answer, straight from the rule: blocks are matched from the left, a state counts at its own position, and
/// a continuation chunk of a hybrid model skips nothing.
Json safe_match(const Json& row, std::int64_t min_remaining) {
  const auto block_size = row.at("block_size").get<std::int64_t>();
  const auto finished = row.at("finished").get<std::int64_t>();
  const auto chunk = row.at("chunk_len").get<std::int64_t>();
  const auto kv = row.at("kv_cached_block_indices").get<std::vector<std::int64_t>>();
  const auto states = row.at("mamba_cached_block_indices").get<std::vector<std::int64_t>>();
  const std::int64_t first = (finished + block_size - 1) / block_size;
  const std::int64_t required = (finished + chunk + block_size - 1) / block_size;
  const std::int64_t full = row.at("prompt_len").get<std::int64_t>() / block_size;
  Json matched = Json::array();
  for (std::int64_t index = first; index < std::min(required, full) && std::ranges::count(kv, index) > 0; ++index)
    matched.push_back(50 + index);
  std::int64_t skip = 0;
  Json state_blocks = nullptr;
  if (finished == 0) {
    state_blocks = 0;
    for (const std::int64_t index : states) {
      if (index >= static_cast<std::int64_t>(matched.size())) continue;
      state_blocks = std::max(state_blocks.get<std::int64_t>(), index + 1);
      if (chunk - (index + 1) * block_size >= min_remaining) skip = std::max(skip, (index + 1) * block_size);
    }
  }
  const auto held = static_cast<std::int64_t>(matched.size());
  return {{"matched_blocks", matched},    {"blocks_from_pool", required - first - held},
          {"already_allocated", first},   {"required_blocks", required},
          {"skip_tokens", skip},          {"effective_len", chunk - skip},
          {"mamba_matched", state_blocks}};
}

BlockHash prefix_key(std::int64_t index) {
  return 1000 + index;
}

/// A pool where block 50 + i holds the i-th block of the prompt if it is cached, and states where the row says so.
void fill(const Json& row, BlockPool& pool, SlotAllocator& states) {
  std::vector<BlockId> everything(static_cast<std::size_t>(pool.free_blocks()));
  if (!pool.allocate(everything)) throw std::runtime_error("the pool is smaller than its free count");
  for (const std::int64_t index : row.at("kv_cached_block_indices").get<std::vector<std::int64_t>>()) {
    const BlockId block{static_cast<std::int32_t>(50 + index)};
    const BlockHash hash = prefix_key(index);
    const BlockHash parent = index == 0 ? root_hash : prefix_key(index - 1);
    pool.register_hashes({&block, 1}, {&hash, 1}, {&parent, 1});
  }
  for (const std::int64_t index : row.at("mamba_cached_block_indices").get<std::vector<std::int64_t>>()) {
    const BlockId block{static_cast<std::int32_t>(50 + index)};
    const BlockHash hash = prefix_key(index);
    SlotId slot;
    states.allocate({&block, 1}, {&slot, 1});
    states.set_tag(block, {.token_count = (index + 1) * row.at("block_size").get<std::int64_t>(),
                           .prefix = {{static_cast<std::uint64_t>(hash), 0}}});
    states.register_hashes({&block, 1}, {&hash, 1});
  }
}

Json our_match(const Json& row, std::int32_t min_remaining) {
  const bool hybrid = row.at("hybrid").get<bool>();
  const bool enabled = row.at("prefix_caching").get<bool>();
  const auto full = row.at("prompt_len").get<std::int64_t>() / row.at("block_size").get<std::int64_t>();
  BlockPool pool({.blocks = static_cast<std::int32_t>(60 + full)});
  SlotPool slots(static_cast<std::int32_t>(full) + 1);
  SlotAllocator states(slots, pool);
  fill(row, pool, states);
  PromptHashes hashes;
  for (std::int64_t index = 0; enabled && index < full; ++index) {
    hashes.keys.push_back(prefix_key(index));
    hashes.prefixes.push_back({{static_cast<std::uint64_t>(prefix_key(index)), 0}});
  }
  const bool state_cache = row.at("mamba_cache").get<bool>();
  const PrefixMatcher matcher(pool, state_cache ? &states : nullptr,
                              {.block_size_tokens = row.at("block_size").get<std::int32_t>(),
                               .min_remaining_tokens = min_remaining,
                               .hybrid = hybrid});
  std::vector<BlockId> matched(hashes.keys.size());
  const BlockMatch match = matcher.match({.finished_tokens = row.at("finished").get<std::int64_t>(),
                                          .chunk_tokens = row.at("chunk_len").get<std::int64_t>(),
                                          .keys = hashes.keys,
                                          .prefixes = hashes.prefixes},
                                         matched);
  matched.resize(static_cast<std::size_t>(match.matched_blocks));
  const bool looked = hybrid && enabled && row.at("finished").get<std::int64_t>() == 0;
  return {{"matched_blocks", ids_json(matched)},
          {"blocks_from_pool", match.new_blocks()},
          {"already_allocated", match.first_block},
          {"required_blocks", match.required_blocks},
          {"skip_tokens", match.skip_tokens},
          {"effective_len", row.at("chunk_len").get<std::int64_t>() - match.skip_tokens},
          {"mamba_matched", looked ? Json(match.state_blocks) : Json(nullptr)}};
}

void prefix_match(const Json& rows, Report& report) {
  constexpr std::int32_t min_remaining = 2;  // these cases were recorded with it
  for (std::size_t i = 0; i < rows.size(); ++i)
    report.run_case(case_name(rows[i], i), [&] {
      const bool unsafe = rows[i].value("upstream_unsafe", false);
      expect_equal(our_match(rows[i], min_remaining),
                   unsafe ? safe_match(rows[i], min_remaining) : rows[i].at("expect"), "match");
    });
}

/// Runs `call` and compares with an expectation that is a value or {"error": …}.
template <class Call>
void expect_value_or_error(const Json& expect, Call&& call) {
  const bool wants_error = expect.is_object() && expect.contains("error");
  Json got;
  try {
    got = call();
  } catch (const InvalidArgument&) {
    if (wants_error) return;
    throw;
  } catch (const OutOfMemory&) {
    if (wants_error) return;
    throw;
  }
  expect_equal(got, expect, "result");
}

void budget(const Json& rows, Report& report) {
  for (std::size_t i = 0; i < rows.size(); ++i)
    report.run_case(case_name(rows[i], i), [&] {
      expect_value_or_error(rows[i].at("expect"), [&] {
        return slots_for_budget(rows[i].at("budget_bytes").get<std::size_t>(),
                                rows[i].at("per_slot_bytes").get<std::size_t>(),
                                rows[i].at("scratch_slots").get<std::int32_t>());
      });
    });
}

void scratch_bound(const Json& rows, Report& report) {
  for (std::size_t i = 0; i < rows.size(); ++i)
    report.run_case(case_name(rows[i], i), [&] {
      expect_value_or_error(rows[i].at("expect"), [&] {
        return scratch_slots_bound(rows[i].at("max_tokens").get<std::int64_t>(),
                                   rows[i].at("block_size").get<std::int32_t>(),
                                   rows[i].at("max_requests").get<std::int32_t>());
      });
    });
}

/// The recorded function knows one model for both sides, and lets no two ranks hold one group.
ModelLayout layout_of(const Json& row) {
  const Json& dims = row.at("dst").at(0).at("dims");
  std::int32_t layers = 0;
  for (const char* side : {"src", "dst"})
    for (const Json& rank : row.at(side)) {
      if (rank.at("dims") != dims) throw std::invalid_argument("ranks of different models");
      layers = std::max(layers, rank.at("layer_start").get<std::int32_t>() + rank.at("num_layers").get<std::int32_t>());
    }
  const auto heads = dims.at("nheads").get<std::int32_t>();
  const auto head_dim = dims.at("headdim").get<std::int64_t>();
  const auto state_dim = dims.at("d_state").get<std::int64_t>();
  const auto groups = dims.at("ngroups").get<std::int32_t>();
  const SplitBand x{.extent = heads * head_dim, .parts = heads, .replicable = false};
  const SplitBand group{.extent = groups * state_dim, .parts = groups, .replicable = false};
  return ModelLayout(StateSpec::uniform(layers, {.window = 3, .dim = x.extent + 2 * group.extent},
                                        {.shape = {heads, head_dim, state_dim}}),
                     {.axis = 1, .bands = {x, group, group}},
                     {.axis = 0, .bands = {{.extent = heads, .parts = heads, .replicable = false}}});
}

std::vector<ReshardRank> ranks_of(const Json& list) {
  std::vector<ReshardRank> ranks;
  for (const Json& rank : list) {
    const auto first = rank.at("layer_start").get<std::int32_t>();
    ranks.push_back({.global_rank = rank.at("global_rank").get<std::int32_t>(),
                     .shard = {.layer_begin = first,
                               .layer_end = first + rank.at("num_layers").get<std::int32_t>(),
                               .head_group = rank.at("tp_rank").get<std::int32_t>(),
                               .head_groups = rank.at("tp_size").get<std::int32_t>()}});
  }
  return ranks;
}

/// As the recorded function writes a slice: its band by name, its layer by its number in the model and on both ranks.
Json slice_row(const ModelLayout& layout, const ReshardSlice& slice) {
  static constexpr const char* conv_bands[] = {"x", "B", "C"};
  constexpr std::int32_t tensors_per_layer = 2;
  const StateTensorSpec& tensor = layout.whole().tensors()[static_cast<std::size_t>(slice.tensor)];
  const char* band = tensor.kind == StateKind::conv ? conv_bands[slice.band] : "recurrent";
  return {slice.src_rank,
          slice.dst_rank,
          band,
          tensor.layer,
          slice.src_tensor / tensors_per_layer,
          slice.dst_tensor / tensors_per_layer,
          slice.src_begin,
          slice.src_end,
          slice.dst_begin,
          slice.dst_end};
}

void ssm_reshard(const Json& rows, Report& report) {
  for (std::size_t i = 0; i < rows.size(); ++i)
    report.run_case(case_name(rows[i], i), [&] {
      expect_value_or_error(rows[i].at("expect"), [&] {
        const ModelLayout layout = layout_of(rows[i]);
        Json table = Json::array();
        for (const ReshardSlice& slice : plan_reshard(layout, ranks_of(rows[i].at("src")), ranks_of(rows[i].at("dst"))))
          table.push_back(slice_row(layout, slice));
        return table;
      });
    });
}

}  // namespace

void add_slot_rule_suites(SuiteTable& table) {
  table.emplace("offsets", &offsets);
  table.emplace("prefix_match", &prefix_match);
  table.emplace("budget", &budget);
  table.emplace("scratch_bound", &scratch_bound);
  table.emplace("ssm_reshard", &ssm_reshard);
}

}  // namespace stateport::conformance
