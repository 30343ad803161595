// SPDX-License-Identifier: Apache-2.0
#include "prefix_replay.hpp"

#include "limits.hpp"

#include <algorithm>
#include <ranges>
#include <stdexcept>
#include <utility>

namespace stateport::conformance {
namespace {

constexpr std::int32_t set_aside_slots = 2;

PrefixTree::Options tree_options(const PrefixConfig& config) {
  return {.page_size = config.page_size,
          .slots = config.states + set_aside_slots,
          .chunk_size = config.chunk,
          .max_states_per_path = config.cap,
          .layout_fingerprint = 7,
          .eviction = EvictionOrder::lru};
}

Json name_json(const std::optional<NameKey>& name) {
  return name ? Json(std::string(name->text())) : Json();
}

/// JSON text as Python writes it: the recordings sort paths by it.
std::string sort_key(const Json& value) {
  std::string text;
  bool quoted = false;
  for (const char c : value.dump()) {
    text += c;
    if (c == '"') quoted = !quoted;
    if (!quoted && (c == ',' || c == ':')) text += ' ';
  }
  return text;
}

std::vector<NodeInfo> sorted_by_tick(std::vector<NodeInfo> nodes, std::uint64_t NodeInfo::*tick) {
  std::ranges::sort(nodes, std::ranges::greater{}, tick);
  return nodes;
}

}  // namespace

PrefixConfig::PrefixConfig(const Json& config)
    : page_size(config.value("page_size", 1)),
      kv_size(config.value("kv_size", 128)),
      states(config.value("mamba_size", 20)),
      chunk(config.value("chunk", 64)),
      cap(config.value("cap", -1)),
      extra_buffer(config.value("extra_buffer", false)),
      track_interval(config.value("track_interval", 256)),
      split_refreshes_state(config.value("split_refreshes_state", false)) {}

NamespaceOf::NamespaceOf(const Json& op) {
  const auto ns = op.find("ns");
  if (ns == op.end() || ns->is_null()) return;
  if (!ns->at(0).is_null()) extra_key = ns->at(0).get<std::string>();
  if (!ns->at(1).is_null()) salt = ns->at(1).get<std::string>();
}

Json path_json(const Namespace& name_space, const std::vector<Token>& tokens) {
  if (name_space == Namespace{}) return tokens;
  return {{"ns", {name_json(name_space.extra_key), name_json(name_space.salt)}}, {"tokens", tokens}};
}

PrefixReplay::PrefixReplay(const PrefixConfig& config)
    : config_(config), tree_(tree_options(config)), kv_pool_(config.kv_size, config.page_size) {
  std::vector<SlotId> all(static_cast<std::size_t>(config.states + set_aside_slots));
  if (!tree_.allocate_slots(all)) throw std::logic_error("a new pool is not free");
  set_aside_.assign(all.begin() + config.states, all.end());
  tree_.release_slots(std::span(all).first(static_cast<std::size_t>(config.states)));
}

Json PrefixReplay::run(const Json& op) {
  kv_freed_ = Json::array();
  slots_freed_ = Json::array();
  if (config_.split_refreshes_state) look_ahead(op);
  const std::string name = op.at("op");
  Json result = Json::object();
  if (name == "match") {
    result = match(op);
  } else if (name == "insert") {
    result = insert(op);
  } else if (name == "evict") {
    result = evict(op);
  } else if (name == "lock") {
    const std::string label = op.at("node");
    locks_[label].push_back(tree_.lock(labels_.at(label)));
  } else if (name == "unlock") {
    std::vector<PrefixLock>& held = locks_.at(op.at("node"));
    require_in("locks of a node", std::ssize(held), 1, std::ssize(held));
    held.pop_back();
  } else if (name == "drain_slots") {
    std::vector<SlotId> rest(static_cast<std::size_t>(tree_.slots().free_slots()));
    if (!tree_.allocate_slots(rest)) throw std::logic_error("free slots were not given");
  } else if (name == "reset") {
    Freed forgotten;
    tree_.reset(forgotten);
  } else if (name == "dump") {
    result = dump();
  } else if (name == "sanity") {
    result = {{"ok", true}};
  } else {
    result = run_other(op);
  }
  if (config_.split_refreshes_state) refresh_shortened();
  tree_.check_invariants();
  kv_pool_.check_invariants();
  result["kv_freed"] = kv_freed_;
  result["slots_freed"] = slots_freed_;
  result["sizes"] = sizes();
  return result;
}

void PrefixReplay::look_ahead(const Json& op) {
  const auto note = [this] {
    segment_tokens_.clear();
    for (const NodeInfo& node : tree_.nodes())
      segment_tokens_[{node.id.index, node.id.generation}] = node.tokens.size();
  };
  note();
  // These evict a state after a split. The lookup makes the same nodes recent once more, in the same order.
  const std::string name = op.at("op");
  std::vector<Token> key;
  if (name == "match" && op.contains("cow_req")) key = op.at("key").get<std::vector<Token>>();
  if (name == "req_start") key = op.at("tokens").get<std::vector<Token>>();
  if (name == "req_start" && !key.empty()) key.pop_back();  // the last token is computed anyway
  if (key.empty()) return;
  tree_.match(key, NamespaceOf(op).view());
  refresh_shortened();
  note();
}

void PrefixReplay::refresh_shortened() {
  auto& slots = const_cast<SlotPool&>(tree_.slots());  // no call of the tree touches a state alone
  for (const NodeInfo& node : tree_.nodes()) {
    const auto before = segment_tokens_.find({node.id.index, node.id.generation});
    if (before == segment_tokens_.end() || before->second == node.tokens.size() || !node.slot.valid()) continue;
    slots.touch(node.slot, std::max(node.state_tick, node.tick));
  }
}

Json PrefixReplay::run_other(const Json& op) {
  throw std::runtime_error("unknown operation " + op.at("op").dump());
}

Json PrefixReplay::match(const Json& op) {
  const auto key = op.at("key").get<std::vector<Token>>();
  const NamespaceOf name_space(op);
  std::vector<KvIndex> kv(key.size());
  PrefixMatch hit;
  Json result = Json::object();
  if (const auto request = op.find("cow_req"); request != op.end()) {
    SlotId& live = live_slots_[*request];
    Freed freed;
    hit = tree_.match_with_live_slot(key, name_space.view(), kv, live, freed);
    give_back(freed);
    if (hit.live_slot.valid()) {
      live = hit.live_slot;
      const SlotCopy copy = hit.restore_into(live);
      result["cow"] = {
          {"dst", slot_json(SlotId{copy.dst_slot})}, {"src", slot_json(SlotId{copy.src_slot})}, {"needs_clear", false}};
    }
  } else {
    hit = tree_.match(key, name_space.view(), kv);
  }
  const auto again = tree_.check_restore(hit);
  if (!hit.node.is_root() && again != TagCheck::match) throw std::runtime_error("the hit cannot be restored");
  if (const auto label = op.find("label"); label != op.end()) labels_[*label] = hit.node;
  kv.resize(static_cast<std::size_t>(hit.tokens));
  std::int64_t node_tokens = 0;
  for (const NodeInfo& node : tree_.nodes())
    if (node.id == hit.node) node_tokens = static_cast<std::int64_t>(node.tokens.size());
  result["matched_len"] = hit.tokens;
  result["indices"] = kv;
  result["node"] = path_of(hit.node);
  result["node_key_len"] = node_tokens;
  result["branching"] = hit.branching_position ? Json(*hit.branching_position) : Json();
  result["node_slot"] = slot_json(hit.slot);
  return result;
}

Json PrefixReplay::insert(const Json& op) {
  const auto key = op.at("key").get<std::vector<Token>>();
  const NamespaceOf name_space(op);
  const std::int64_t prev = op.value("prev_prefix_len", std::int64_t{0});
  std::vector<KvIndex> kv = op.value("kv", std::vector<KvIndex>(key.size()));
  require_in("prev_prefix_len", prev, 0, std::ssize(kv));
  SlotId slot;
  // Recorded ids of traces were just taken from the pools' fronts; those of key cases belong to no pool.
  const bool foreign = op.contains("slot") && !op.contains("free_slot_if_exist");
  if (foreign) {
    slot = foreign_slot(op.at("slot"));
  } else {
    std::vector<KvIndex> taken(op.contains("kv") ? kv.size() - static_cast<std::size_t>(prev) : kv.size());
    if (!kv_pool_.allocate(taken) || !tree_.allocate_slots({&slot, 1})) throw std::runtime_error("a pool is short");
    if (op.contains("kv")) {
      const std::vector<KvIndex> recorded(kv.begin() + prev, kv.end());
      expect_equal(taken, recorded, "kv taken from the pool");
      expect_equal(slot_json(slot), op.at("slot"), "slot taken from the pool");
    } else {
      kv = taken;
    }
  }
  const std::size_t cut =
      key.size() / static_cast<std::size_t>(config_.page_size) * static_cast<std::size_t>(config_.page_size);
  tree_.tag_slot(slot, tree_.state_tag(std::span(key).first(cut), name_space.view()));
  Freed freed;
  const InsertResult inserted = tree_.insert(
      {.tokens = key, .kv = kv, .slot = slot, .name_space = name_space.view(), .prev_tokens = prev}, freed);
  give_back(freed);
  if (inserted.state_exists && op.value("free_slot_if_exist", false)) {
    tree_.release_slots({&slot, 1});
    slots_freed_.push_back(slot_json(slot));
  }
  return {{"kv_in", kv},
          {"slot_in", slot_json(slot)},
          {"prefix_len", inserted.prefix_tokens},
          {"mamba_exist", inserted.state_exists}};
}

Json PrefixReplay::evict(const Json& op) {
  Freed freed;
  const EvictResult evicted = tree_.evict(
      {.tokens = op.value("num_tokens", std::int64_t{0}), .states = op.value("mamba_num", std::int64_t{0})}, freed);
  give_back(freed);
  return {{"num_tokens_evicted", evicted.tokens}, {"mamba_num_evicted", evicted.states}};
}

void PrefixReplay::give_back(const Freed& freed) {
  kv_pool_.release(freed.kv);
  for (const KvIndex index : freed.kv) kv_freed_.push_back(index);
  for (const SlotId slot : freed.slots) slots_freed_.push_back(slot_json(slot));
}

SlotId PrefixReplay::foreign_slot(std::int32_t recorded) {
  if (!foreign_.contains(recorded)) {
    require_in("slots of no pool", std::ssize(foreign_), 0, set_aside_slots - 1);
    foreign_[recorded] = set_aside_.back();
    set_aside_.pop_back();
  }
  return foreign_.at(recorded);
}

Json PrefixReplay::slot_json(SlotId slot) const {
  if (!slot.valid()) return nullptr;
  for (const auto& [recorded, ours] : foreign_)
    if (ours == slot) return recorded;
  return slot.value() + 1;
}

Json PrefixReplay::path_of(NodeId node) const {
  std::map<std::uint32_t, NodeInfo> by_index;
  for (const NodeInfo& info : tree_.nodes()) by_index[info.id.index] = info;
  std::vector<Token> path;
  Namespace name_space;
  for (NodeId at = node; !at.is_root(); at = by_index.at(at.index).parent) {
    const NodeInfo& info = by_index.at(at.index);
    path.insert(path.begin(), info.tokens.begin(), info.tokens.end());
    name_space = info.name_space;
  }
  return path_json(name_space, path);
}

Json PrefixReplay::dump() const {
  const std::vector<NodeInfo> all = tree_.nodes();
  std::vector<std::pair<std::string, Json>> nodes;
  std::vector<std::pair<std::string, Json>> leaves;
  for (const NodeInfo& node : all) {
    const Json path = path_of(node.id);
    nodes.emplace_back(sort_key(path), Json{{"path", path},
                                            {"key_len", node.tokens.size()},
                                            {"kv", std::vector<KvIndex>(node.kv.begin(), node.kv.end())},
                                            {"slot", slot_json(node.slot)},
                                            {"full_lock", node.full_lock},
                                            {"mamba_lock", node.state_lock},
                                            {"children", node.children}});
    if (node.evictable_leaf()) leaves.emplace_back(sort_key(path), path);
  }
  Json result{{"nodes", Json::array()},
              {"lru",
               {{"mamba_mru_to_lru", Json::array()},
                {"full_by_access_time_desc", Json::array()},
                {"evictable_leaves", Json::array()}}}};
  const auto by_text = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::ranges::sort(nodes, by_text);
  std::ranges::sort(leaves, by_text);
  for (const auto& [text, node] : nodes) result["nodes"].push_back(node);
  for (const auto& [text, path] : leaves) result["lru"]["evictable_leaves"].push_back(path);
  for (const NodeInfo& node : sorted_by_tick(all, &NodeInfo::tick))
    result["lru"]["full_by_access_time_desc"].push_back(path_of(node.id));
  for (const NodeInfo& node : sorted_by_tick(all, &NodeInfo::state_tick))
    if (node.slot.valid()) result["lru"]["mamba_mru_to_lru"].push_back(path_of(node.id));
  return result;
}

Json PrefixReplay::sizes() const {
  const TreeSizes& sizes = tree_.sizes();
  return {{"full_evictable", sizes.evictable_tokens},
          {"full_protected", sizes.protected_tokens},
          {"mamba_evictable", sizes.evictable_states},
          {"mamba_protected", sizes.protected_states},
          {"total", {sizes.total_tokens(), sizes.total_states()}},
          {"kv_available", kv_pool_.available()},
          {"slots_available", tree_.slots().free_slots()}};
}

}  // namespace stateport::conformance
