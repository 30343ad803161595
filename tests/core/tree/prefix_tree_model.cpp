// SPDX-License-Identifier: Apache-2.0
#include "prefix_tree_model.hpp"

#include <algorithm>

namespace stateport::test {

PrefixModel::PrefixModel(const Config& options) : states(static_cast<std::size_t>(options.slots)), config(options) {
  nodes.reserve(512);
  nodes.emplace_back();
  for (int slot = 0; slot < options.slots; ++slot) free_slots.push_back(slot);
}

std::vector<int> PrefixModel::live() const {
  std::vector<int> all;
  for (int i = 1; i < static_cast<int>(nodes.size()); ++i)
    if (node(i).alive) all.push_back(i);
  return all;
}

int PrefixModel::children(int parent) const {
  return static_cast<int>(
      std::count_if(nodes.begin() + 1, nodes.end(), [&](const Node& n) { return n.alive && n.parent == parent; }));
}

std::vector<Token> PrefixModel::path(int at) const {
  std::vector<Token> tokens;
  for (; at != 0; at = node(at).parent) tokens.insert(tokens.begin(), node(at).tokens.begin(), node(at).tokens.end());
  return tokens;
}

PrefixModel::Sizes PrefixModel::sizes() const {
  Sizes sizes;
  for (const int i : live()) {
    const auto tokens = static_cast<std::int64_t>(node(i).tokens.size());
    (node(i).full_lock > 0 ? sizes.protected_tokens : sizes.evictable_tokens) += tokens;
    if (node(i).slot >= 0) ++(node(i).state_lock > 0 ? sizes.protected_states : sizes.evictable_states);
  }
  return sizes;
}

std::optional<int> PrefixModel::take_slot() {
  if (free_slots.empty()) return std::nullopt;
  const int slot = free_slots.front();
  free_slots.pop_front();
  return slot;
}

PrefixModel::Walk PrefixModel::walk(const std::vector<Token>& key, int name_space) const {
  Walk walk;
  const std::size_t length = key.size() / config.page * config.page;
  for (int at = 0; walk.tokens < length;) {
    const auto rest = key.begin() + static_cast<std::ptrdiff_t>(walk.tokens);
    int child = 0;
    std::size_t common = 0;
    for (int i = 1; i < static_cast<int>(nodes.size()); ++i) {
      const Node& n = node(i);
      if (!n.alive || n.parent != at || n.name_space != name_space) continue;
      const std::size_t limit = std::min(n.tokens.size(), length - walk.tokens);
      const auto differs = std::mismatch(n.tokens.begin(), n.tokens.begin() + static_cast<std::ptrdiff_t>(limit), rest);
      const auto same = static_cast<std::size_t>(differs.first - n.tokens.begin()) / config.page * config.page;
      if (same == 0) continue;
      child = i;
      common = same;
      break;
    }
    if (child == 0) break;
    walk.tokens += common;
    if (common < node(child).tokens.size()) {
      walk.cut = child;
      walk.cut_tokens = common;
      break;
    }
    walk.nodes.push_back(child);
    at = child;
  }
  return walk;
}

int PrefixModel::split(int lower, std::size_t tokens) {
  const int upper = static_cast<int>(nodes.size());
  nodes.push_back(at(lower));
  const auto cut = static_cast<std::ptrdiff_t>(tokens);
  Node& above = at(upper);
  Node& below = at(lower);
  above.tokens.resize(tokens);
  above.kv.resize(tokens);
  above.slot = -1;
  above.state_lock = 0;
  above.tick = ++clock;
  below.tokens.erase(below.tokens.begin(), below.tokens.begin() + cut);
  below.kv.erase(below.kv.begin(), below.kv.begin() + cut);
  below.parent = upper;
  below.tick = ++clock;
  return upper;
}

PrefixModel::Match PrefixModel::match(const std::vector<Token>& key, int name_space) {
  Walk found = walk(key, name_space);
  const auto walked = static_cast<std::int64_t>(found.tokens);
  if (found.cut != 0) split(found.cut, found.cut_tokens);
  while (!found.nodes.empty() && node(found.nodes.back()).slot < 0) found.nodes.pop_back();
  Match match;
  for (const int i : found.nodes) {
    at(i).tick = ++clock;
    match.kv.insert(match.kv.end(), node(i).kv.begin(), node(i).kv.end());
    match.node = i;
  }
  match.tokens = static_cast<std::int64_t>(match.kv.size());
  if (match.node != 0) {
    match.slot = node(match.node).slot;
    at(match.node).state_tick = ++clock;
  }
  const std::int64_t branching = walked / config.grid * config.grid;
  if (branching > match.tokens) match.branching = branching;
  return match;
}

void PrefixModel::touch(int touched) {
  std::vector<int> path;
  for (int i = touched; i != 0; i = node(i).parent) path.push_back(i);
  for (; !path.empty(); path.pop_back()) at(path.back()).tick = ++clock;
  if (node(touched).slot >= 0) at(touched).state_tick = ++clock;
}

PrefixModel::Match PrefixModel::match_with_live_slot(const std::vector<Token>& key, int name_space, Out& out) {
  Match found = match(key, name_space);
  if (found.node == 0) return found;
  auto slot = take_slot();
  if (!slot) {
    const Lock held = lock(found.node);
    evict(0, 1, out);
    slot = take_slot();
    unlock(held);
  }
  if (!slot) return {.branching = found.branching};
  found.live_slot = *slot;
  return found;
}

std::tuple<std::int64_t, bool, int> PrefixModel::insert(const std::vector<Token>& key, const std::vector<KvIndex>& kv,
                                                        int slot, int name_space, std::size_t prev,
                                                        std::int32_t priority, bool chunked, Out& out) {
  const std::size_t length = key.size() / config.page * config.page;
  if (length == 0) return {0, true, 0};
  const Walk found = walk(key, name_space);
  const auto use = [&](int i) {
    at(i).hits += !chunked;
    at(i).priority = std::max(at(i).priority, priority);
  };
  int end = 0;
  for (const int i : found.nodes) {
    at(i).tick = ++clock;
    use(i);
    end = i;
  }
  if (found.cut != 0) {
    at(found.cut).tick = ++clock;
    end = split(found.cut, found.cut_tokens);
    use(end);
  }
  out.kv.insert(out.kv.end(), kv.begin() + static_cast<std::ptrdiff_t>(prev),
                kv.begin() + static_cast<std::ptrdiff_t>(found.tokens));
  if (found.tokens < length) {
    Node leaf;
    leaf.parent = end;
    leaf.name_space = name_space;
    leaf.tokens.assign(key.begin() + static_cast<std::ptrdiff_t>(found.tokens),
                       key.begin() + static_cast<std::ptrdiff_t>(length));
    leaf.kv.assign(kv.begin() + static_cast<std::ptrdiff_t>(found.tokens),
                   kv.begin() + static_cast<std::ptrdiff_t>(length));
    leaf.hits = !chunked;
    leaf.priority = priority;
    leaf.created = clock + 1;
    end = static_cast<int>(nodes.size());
    nodes.push_back(leaf);
  }
  at(end).tick = ++clock;
  const bool exists = node(end).slot >= 0;
  if (!exists && slot >= 0) at(end).slot = slot;
  if (node(end).slot >= 0) at(end).state_tick = ++clock;
  if (!exists && slot >= 0 && config.cap >= 0) {
    std::vector<int> with_state;
    for (int i = end; i != 0; i = node(i).parent)
      if (node(i).slot >= 0) with_state.insert(with_state.begin(), i);
    int surplus = static_cast<int>(with_state.size()) - config.cap;
    for (const int i : with_state) {
      if (surplus <= 0 || i == end) break;
      if (children(i) != 1 || node(i).state_lock > 0) continue;
      drop_state(i, out);
      --surplus;
    }
  }
  return {static_cast<std::int64_t>(found.tokens), exists, end};
}

std::pair<std::int64_t, std::uint64_t> PrefixModel::key_of(const Node& n) const {
  switch (config.order) {
    case EvictionOrder::gdsf:
    case EvictionOrder::hix:
      break;  // these have memory, and tests of their own
    case EvictionOrder::lru:
      return {0, n.tick};
    case EvictionOrder::lfu:
      return {n.hits, n.tick};
    case EvictionOrder::fifo:
      return {0, n.created};
    case EvictionOrder::slru:
      return {n.hits >= 2, n.tick};
    case EvictionOrder::priority:
      return {n.priority, n.tick};
    case EvictionOrder::mru:
      return {0, UINT64_MAX - n.tick};
    case EvictionOrder::filo:
      return {0, UINT64_MAX - n.created};
  }
  return {};
}

std::optional<int> PrefixModel::next_leaf() const {
  std::optional<int> best;
  for (const int i : live())
    if (node(i).full_lock == 0 && children(i) == 0 && (!best || key_of(node(i)) < key_of(node(*best)))) best = i;
  return best;
}

std::optional<int> PrefixModel::next_state() const {
  std::optional<int> best;
  for (const int i : live())
    if (node(i).slot >= 0 && node(i).state_lock == 0 && (!best || node(i).state_tick < node(*best).state_tick))
      best = i;
  return best;
}

void PrefixModel::drop_state(int i, Out& out) {
  out.slots.push_back(node(i).slot);
  free_slot(node(i).slot);
  at(i).slot = -1;
}

void PrefixModel::remove(int i, Out& out) {
  out.kv.insert(out.kv.end(), node(i).kv.begin(), node(i).kv.end());
  if (node(i).slot >= 0) drop_state(i, out);
  at(i).alive = false;
}

std::pair<std::int64_t, std::int64_t> PrefixModel::evict(std::int64_t tokens, std::int64_t wanted, Out& out) {
  const std::size_t kv_before = out.kv.size();
  const std::size_t slots_before = out.slots.size();
  const auto freed_tokens = [&] { return static_cast<std::int64_t>(out.kv.size() - kv_before); };
  const auto freed_states = [&] { return static_cast<std::int64_t>(out.slots.size() - slots_before); };
  while (freed_tokens() < tokens) {
    const auto leaf = next_leaf();
    if (!leaf) break;
    remove(*leaf, out);
  }
  while (freed_states() < wanted) {
    const auto victim = next_state();
    if (!victim) break;
    if (node(*victim).full_lock == 0 && children(*victim) == 0)
      remove(*victim, out);
    else
      drop_state(*victim, out);
  }
  return {freed_tokens(), freed_states()};
}

PrefixModel::Lock PrefixModel::lock(int i) {
  for (int up = i; up != 0; up = node(up).parent) ++at(up).full_lock;
  if (i != 0) ++at(i).state_lock;
  return {i};
}

void PrefixModel::unlock(const Lock& held) {
  if (!node(held.node).alive) return;
  for (int up = held.node; up != 0; up = node(up).parent) --at(up).full_lock;
  if (held.node != 0) --at(held.node).state_lock;
}

void PrefixModel::forget(int name_space, Out& out) {
  const auto next = [&](const auto& fits) {
    const std::vector<int> all = live();
    const auto found = std::ranges::find_if(all, [&](int i) { return node(i).name_space == name_space && fits(i); });
    return found == all.end() ? 0 : *found;
  };
  const auto is_free_leaf = [&](int i) { return children(i) == 0 && node(i).full_lock == 0; };
  const auto has_free_state = [&](int i) { return node(i).slot >= 0 && node(i).state_lock == 0; };
  while (const int leaf = next(is_free_leaf)) remove(leaf, out);
  while (const int owner = next(has_free_state)) drop_state(owner, out);
}

void PrefixModel::reset() {
  for (Node& n : nodes) n.alive = false;
}

}  // namespace stateport::test
