// SPDX-License-Identifier: Apache-2.0
#include "request_replay.hpp"

#include <stdexcept>

namespace stateport::conformance {

RequestReplay::RequestReplay(const PrefixConfig& config)
    : PrefixReplay(config),
      cache_(tree_, kv_pool_,
             {.style = config.extra_buffer ? CheckpointStyle::donate_tracked : CheckpointStyle::copy_live,
              .track_interval = config.track_interval}) {}

Json RequestReplay::run_other(const Json& op) {
  const std::string name = op.at("op");
  Json result;
  if (name == "req_start")
    result = start(op);
  else if (name == "req_extend")
    result = extend(op);
  else if (name == "req_decode")
    result = decode(op);
  else if (name == "req_finish")
    result = finish(op);
  else if (name == "check_states")
    result = check_states();
  else
    return PrefixReplay::run_other(op);
  cache_.check_invariants();
  return result;
}

void RequestReplay::report(const Freed& freed) {
  for (const KvIndex index : freed.kv) kv_freed_.push_back(index);
  for (const SlotId slot : freed.slots) slots_freed_.push_back(slot_json(slot));
}

RequestReplay::State RequestReplay::state_at(RequestId request, std::int64_t tokens) const {
  const auto all = cache_.tokens(request);
  return {namespaces_.at(request), {all.begin(), all.begin() + tokens}};
}

Json RequestReplay::copy_json(const SlotCopy& copy) const {
  return {slot_json(SlotId{copy.src_slot}), slot_json(SlotId{copy.dst_slot})};
}

Json RequestReplay::pingpong(RequestId request) const {
  if (!config_.extra_buffer) return nullptr;
  const auto tracks = cache_.track_slots(request);
  return {slot_json(tracks[0]), slot_json(tracks[1])};
}

Json RequestReplay::start(const Json& op) {
  const NamespaceOf name_space(op);
  Freed freed;
  const auto started = cache_.start(op.at("tokens").get<std::vector<Token>>(), name_space.view(), freed);
  report(freed);
  if (!started) throw std::runtime_error("no slot for a request");
  const RequestId request = started->request;
  requests_[op.at("rid")] = request;
  namespaces_[request] = path_json(name_space.view(), {});
  return {{"prefix_len", started->prefix_tokens},
          {"branching", started->branching_position ? Json(*started->branching_position) : Json()},
          {"cow_src_dst", started->restore ? copy_json(*started->restore) : Json()},
          {"active_slot", slot_json(started->live_slot)},
          {"pingpong", pingpong(request)},
          {"lock_node", path_of(cache_.locked_node(request))}};
}

Json RequestReplay::extend(const Json& op) {
  const RequestId request = requests_.at(op.at("rid"));
  const auto tokens = static_cast<std::int64_t>(cache_.tokens(request).size());
  const std::int64_t upto = op.value("upto", tokens);
  Freed freed;
  const auto plan = cache_.extend(request, upto, freed);
  report(freed);
  if (!plan) throw std::runtime_error("no KV for a request");
  Json result = Json::object();
  State& live = states_[cache_.live_slot(request)];
  if (plan->clear) {
    result["clear"] = slot_json(*plan->clear);
    live = state_at(request, 0);
  }
  if (plan->restore) {
    result["cow_copy"] = copy_json(*plan->restore);
    copy_state(*plan->restore);
  }
  result["state_resume_ok"] = live == state_at(request, plan->start);
  live = state_at(request, upto);
  if (plan->track) {
    result["tracked"] = {plan->track->position, slot_json(plan->track->slot)};
    if (plan->track->at_branching) result["tracked_branch"] = true;
    states_[plan->track->slot] = state_at(request, plan->track->position);
  }
  if (op.value("cache", true)) cache_unfinished(request, op, result);
  return result;
}

void RequestReplay::cache_unfinished(RequestId request, const Json& op, Json& result) {
  Freed freed;
  const TreeRequests::Cached cached = cache_.cache_unfinished(request, op.value("chunked", false), freed);
  report(freed);
  result["state_copies"] = Json::array();
  if (cached.checkpoint) {
    copy_state(*cached.checkpoint);
    result["state_copies"].push_back(copy_json(*cached.checkpoint));
  }
  result["protected_len"] = cached.protected_tokens;
  result["lock_node"] = path_of(cache_.locked_node(request));
  const auto row = cache_.kv_row(request);
  result["row"] = std::vector<KvIndex>(row.begin(), row.end());
  result["pingpong"] = pingpong(request);
}

Json RequestReplay::decode(const Json& op) {
  const RequestId request = requests_.at(op.at("rid"));
  Json tracked = Json::array();
  for (const Json& token : op.at("tokens")) {
    const Token sampled = token;
    Freed freed;
    // The first output token comes from the pass over the prompt.
    std::optional<TreeRequests::DecodePlan> plan(std::in_place);
    if (cache_.tokens(request).size() > cache_.kv_row(request).size()) plan = cache_.plan_decode(request, 0, freed);
    if (!plan) throw std::runtime_error("no KV for a request");
    cache_.append(request, {&sampled, 1}, freed);
    report(freed);
    const auto computed = static_cast<std::int64_t>(cache_.kv_row(request).size());
    states_[cache_.live_slot(request)] = state_at(request, computed);
    if (!plan->track) continue;
    tracked.push_back({plan->track->position, slot_json(plan->track->slot)});
    states_[plan->track->slot] = state_at(request, plan->track->position);
  }
  return {{"tracked", tracked}, {"committed", cache_.kv_row(request).size()}};
}

Json RequestReplay::finish(const Json& op) {
  const RequestId request = requests_.at(op.at("rid"));
  const std::size_t committed = cache_.kv_row(request).size();
  Freed freed;
  if (op.value("insert", true))
    cache_.finish(request, freed);
  else
    cache_.abort(request, freed);
  report(freed);
  return {{"committed", committed}};
}

Json RequestReplay::check_states() const {
  Json bad = Json::array();
  for (const NodeInfo& node : tree_.nodes()) {
    if (!node.slot.valid()) continue;
    const State& state = states_.at(node.slot);
    Json expected = state.first;
    if (expected.is_array())
      expected = state.second;
    else
      expected["tokens"] = state.second;
    if (path_of(node.id) != expected) bad.push_back(path_of(node.id));
  }
  return {{"states_match_prefixes", bad.empty()}, {"bad", bad}};
}

}  // namespace stateport::conformance
