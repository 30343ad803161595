// SPDX-License-Identifier: Apache-2.0
#include "tree_life.hpp"

#include <algorithm>
#include <array>

namespace stateport::conformance {
namespace {

constexpr std::int32_t max_requests = 8;

/// Live states and checkpoints share the recorded pool. A checkpoint is taken at the end of each chunk alone.
RequestCacheOptions options_of(const PrefixConfig& config) {
  return {.index = CacheIndex::tree,
          .layout = SlotLayout{.layout_fingerprint = 7,
                               .checkpoints = config.states - std::min(max_requests, config.states - 1),
                               .scan_alignment_tokens = -1},
          .max_requests = std::min(max_requests, config.states - 1),
          .max_request_tokens = config.kv_size,
          .block_size_tokens = config.page_size,
          .kv_tokens = config.kv_size,
          .eviction = EvictionOrder::lru};
}

Json slot_json(SlotId slot) {
  return slot.value() + 1;
}

}  // namespace

TreeLife::TreeLife(const PrefixConfig& config, const Json& ops)
    : cache_(make_request_cache(options_of(config))), free_slots_(static_cast<std::size_t>(config.states)) {
  for (const Json& op : ops)
    if (op.at("op") == "req_decode")
      for (const Json& token : op.at("tokens")) outputs_[op.at("rid")].push_back(token);
}

void TreeLife::run(const Json& op, const Json& recorded) {
  const std::string name = op.at("op");
  if (name == "req_start") {
    start(op, recorded);
  } else if (name == "req_extend") {
    extend(op, recorded);
  } else if (name == "req_decode") {
    decode(op, recorded);
  } else if (name == "req_finish") {
    const RequestId request = requests_.at(op.at("rid"));
    expect_equal(cache_->kv(request).ids.size(), recorded.at("committed"), "tokens with KV");
    cache_->end(request, op.value("insert", true) ? RequestEnd::finished : RequestEnd::aborted);
  }
  free_slots_ = recorded.at("sizes").at("slots_available");
  cache_->check_invariants();
}

TreeLife::State TreeLife::state_at(RequestId request, std::int64_t tokens) const {
  const auto all = cache_->tokens(request);
  return {namespaces_.at(request), {all.begin(), all.begin() + tokens}};
}

Json TreeLife::run_copies(CopyPlan copies) {
  Json list = Json::array();
  for (const SlotCopy& copy : copies) {
    states_[SlotId{copy.dst_slot}] = states_.at(SlotId{copy.src_slot});
    list.push_back({slot_json(SlotId{copy.src_slot}), slot_json(SlotId{copy.dst_slot})});
  }
  return list;
}

void TreeLife::start(const Json& op, const Json& recorded) {
  const NamespaceOf name_space(op);
  const auto tokens = op.at("tokens").get<std::vector<Token>>();
  const StartedRequest started = cache_->start({.tokens = tokens, .name_space = name_space.view()}).value();
  requests_[op.at("rid")] = started.request;
  namespaces_[started.request] = path_json(name_space.view(), {});
  expect_equal(started.reused_tokens, recorded.at("prefix_len"), "reused tokens");
  expect_equal(slot_json(SlotId{cache_->state(started.request).slots[0]}), recorded.at("active_slot"), "live slot");
}

Json TreeLife::plan(RequestId request, std::int64_t tokens) {
  const PassRow row{.request = request, .tokens = static_cast<std::int32_t>(tokens)};
  const PassPlan plan = cache_->plan({&row, 1});
  expect_equal(plan.rows_without_room, 0, "rows without room");
  pass_ = plan.pass;
  Json result = Json::object();
  for (const SlotId slot : plan.groups[0].clear) {
    result["clear"] = slot_json(slot);
    states_[slot] = state_at(request, 0);
  }
  for (const Json& copy : run_copies(plan.groups[0].copies)) result["cow_copy"] = copy;
  const RowPlan& planned = plan.rows[0];
  State& live = states_[planned.states[0].target()];
  expect_equal(live == state_at(request, planned.start), true, "the pass reads the state that it continues");
  live = state_at(request, planned.start + tokens);
  return result;
}

Json TreeLife::commit(std::span<const Token> sampled) {
  const std::array<std::int32_t, 1> counts = {static_cast<std::int32_t>(sampled.size())};
  return run_copies(cache_->commit(pass_, counts, sampled).groups[0].copies);
}

void TreeLife::extend(const Json& op, const Json& recorded) {
  const RequestId request = requests_.at(op.at("rid"));
  const auto prompt = static_cast<std::int64_t>(cache_->tokens(request).size());
  const std::int64_t upto = op.value("upto", prompt);
  const Json before = plan(request, upto - cache_->computed(request));
  for (const char* part : {"clear", "cow_copy"})
    expect_equal(before.value(part, Json()), recorded.value(part, Json()), part);
  if (!op.value("cache", true)) return;  // the request ends while its pass is outstanding
  std::vector<Token>& output = outputs_[op.at("rid")];
  const std::ptrdiff_t samples = upto == prompt && !output.empty() ? 1 : 0;
  const std::vector<Token> sampled(output.begin(), output.begin() + samples);
  output.erase(output.begin(), output.begin() + samples);
  const Json after = commit(sampled);
  // Where the tree has such a state the recorded engine copies all the same and gives the slot back; we do not copy.
  const bool evicts = free_slots_ == 0;
  const bool needless = recorded.at("slots_freed").size() > (evicts ? 1u : 0u);
  expect_equal(after, needless ? Json::array() : recorded.at("state_copies"), "state_copies");
  const auto row = cache_->kv(request).ids;
  expect_equal(std::vector(row.begin(), row.end()), recorded.at("row"), "row");
}

/// The first output token came with the pass over the prompt.
void TreeLife::decode(const Json& op, const Json& recorded) {
  const RequestId request = requests_.at(op.at("rid"));
  std::vector<Token>& output = outputs_[op.at("rid")];
  while (std::cmp_less(cache_->computed(request), recorded.at("committed").get<std::int64_t>())) {
    const Token next = output.at(0);
    output.erase(output.begin());
    static_cast<void>(plan(request, 1));
    expect_equal(commit({&next, 1}), Json::array(), "copies after decoding");
  }
}

}  // namespace stateport::conformance
