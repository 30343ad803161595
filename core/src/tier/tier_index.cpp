// SPDX-License-Identifier: Apache-2.0
#include "tier/tier_index.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

namespace stateport::detail {

namespace {

/// Whether a copy that was answered so did not find its source as it should be. The others speak of where it goes.
bool is_source_lost(TransferStatus status) noexcept {
  using enum TransferStatus;
  return status == gone || status == damaged || status == foreign_layout || status == wrong_position;
}

}  // namespace

TierIndex::TierIndex(const Setup& setup) : TierFinds(setup), loads_(setup.requests) {
  for (Load& load : loads_) load.nodes.reserve(setup.request_blocks + 1);
  // A place on the device may lose its content twice in one call, once to what a load brings.
  const std::size_t states = 2 * setup.states * groups_;
  leaving_states_.reserve(states);
  incomplete_.reserve(states);
  leaving_kv_.reserve(2 * setup.device_blocks);
  if (options_.write_through) {
    fresh_.reserve(states);
    to_write_.reserve(states);
  }
  // An image comes to one tier at a time, and loads end in places of their own.
  const std::size_t coming = nodes_.capacity() * (groups_ + 1);
  const std::size_t loaded = setup.device_blocks + setup.requests * groups_;
  const std::size_t asked = has(Medium::remote) ? 2 * setup.requests * most_finds(setup) : 0;
  under_way_.reserve(coming + loaded + asked);
  const std::size_t dropped = nodes_.capacity() * (groups_ + 1) * tiers_.size();
  for (std::vector<Transfer>* plan : {&plan_, &taken_}) plan->reserve(coming + loaded + asked + dropped);
  // What finds find may come to the remote tier and be evicted for what others find.
  changes_max_ = 2 * (dropped + asked);
}

// What the device has.

void TierIndex::kv_stored(const PrefixHash& prefix, const PrefixHash& parent, std::int64_t tokens, std::int32_t block) {
  // States alone need no KV, so that nothing has to be known of the blocks before them.
  const std::uint32_t node = nodes_.intern(prefix, states_alone() ? PrefixHash{} : parent, tokens);
  if (node == none) return;
  nodes_[node].kv.in |= on_device;
  nodes_[node].kv_block = block;
  on_device_again(node, CacheContent::kv_block);
}

void TierIndex::kv_lost(const PrefixHash& prefix) {
  const std::uint32_t node = nodes_.find(prefix);
  if (node == none || (nodes_[node].kv.in & on_device) == 0) return;
  nodes_[node].kv.in &= below_device;
  leaving_kv_.push_back({node, nodes_[node].tokens});
  ++nodes_[node].kv.readers;  // until flush()
}

void TierIndex::state_stored(const PrefixHash& prefix, std::size_t group, SlotId slot) {
  const std::uint32_t node = nodes_.find(prefix);
  if (node == none) return;
  TierNode& entry = nodes_[node];
  nodes_.slots(node)[group] = slot.value();
  entry.device_groups |= 1U << group;
  entry.made_in = call_;
  entry.tick = ++tick_;
  if (std::cmp_less(std::popcount(entry.device_groups), groups_)) return;
  if ((entry.state.in & on_device) == 0) nodes_.add_need(node, Medium::device);
  entry.state.in |= on_device;
  entry.state.given_up = 0;
  if (!forest_.has_state(node)) forest_.store(BlockId{static_cast<std::int32_t>(node)});
  if (options_.write_through) fresh_.push_back(node);
  on_device_again(node, CacheContent::state);
}

void TierIndex::state_lost(const PrefixHash& prefix, std::size_t group) {
  const std::uint32_t node = nodes_.find(prefix);
  if (node == none) return;
  TierNode& entry = nodes_[node];
  entry.device_groups &= ~(1U << group);
  ++entry.state.readers;  // until flush()
  if ((entry.state.in & on_device) == 0) return incomplete_.push_back(node);
  entry.state.in &= below_device;
  leaving_states_.push_back(node);
}

PromptPast TierIndex::served(std::span<const BlockHash> keys, std::span<const PrefixHash> prefixes,
                             const PromptFacts& prompt, double now_s) {
  std::size_t next = 0;
  const auto find = [&](BlockHash) -> std::optional<StateForest::Found> {
    const std::uint32_t node = nodes_.find(prefixes[next++]);
    if (node == none || !forest_.has_state(node)) return std::nullopt;
    nodes_[node].tick = ++tick_;
    return StateForest::Found{BlockId{static_cast<std::int32_t>(node)}, nodes_[node].tokens};
  };
  const PromptPast past = forest_.serve(keys, prompt, now_s, find);
  for (const std::uint32_t node : forest_.served())
    for (const Medium medium : tiers_) level(medium).order.rank_again(source(medium), node);
  return past;
}

std::size_t TierIndex::deepest_state(std::span<const PrefixHash> prefixes) const noexcept {
  for (std::size_t blocks = prefixes.size(); blocks > 0; --blocks)
    if (const std::uint32_t node = nodes_.find(prefixes[blocks - 1]); node != none && forest_.has_state(node))
      return blocks;
  return 0;
}

// What a prompt can load.

TierHit TierIndex::find(std::span<const PrefixHash> prefixes, std::int64_t device_tokens, std::int64_t cached_tokens,
                        std::int64_t usable_tokens) {
  TierHit best{.walked_tokens = cached_tokens};
  bool found = false;
  MediumBytes kv_bytes = {};
  const auto first = static_cast<std::size_t>(device_tokens / block_size_);
  std::uint32_t before = first > 0 && !states_alone() ? nodes_.find(prefixes[first - 1]) : none;
  const auto cached = static_cast<std::size_t>(cached_tokens / block_size_);
  const std::size_t elsewhere = states_alone() ? kv_reaches(prefixes, cached, usable_tokens) : 0;
  for (std::size_t i = first; i < prefixes.size(); ++i) {
    const std::uint32_t node = nodes_.find(prefixes[i]);
    if (node != none && before != none && nodes_[node].parent == none) nodes_.link(node, before);
    if (!states_alone()) before = node;
    const std::int64_t tokens = static_cast<std::int64_t>(i + 1) * block_size_;
    if (i >= cached && states_alone()) {
      if (i >= elsewhere) break;
      best.walked_tokens = tokens;
    } else if (i >= cached) {
      if (node == none || (nodes_[node].kv.in & below_device) == 0) break;
      kv_bytes[static_cast<std::size_t>(fastest(nodes_[node].kv.in))] += options_.kv_image_bytes;
      best.walked_tokens = tokens;
    }
    // A state whose KV is on the device, too, is the device's own hit.
    const MediumSet states = usable_state(node) & (i < cached ? below_device : all_media);
    if (states == 0 || tokens > usable_tokens) continue;
    const bool device_state = (states & on_device) != 0;
    auto bytes = kv_bytes;
    if (!device_state) bytes[static_cast<std::size_t>(fastest(states))] += options_.state_image_bytes;
    found = true;
    const std::optional<double> saved_s = time_saved(tokens - device_tokens, bytes);
    if (saved_s && *saved_s <= best.saved_s) continue;
    best.tokens = tokens;
    best.device_state = device_state;
    best.gained_tokens = tokens - device_tokens;
    best.saved_s = saved_s.value_or(0);
    best.bytes = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
    best.medium = Medium::elsewhere;
    for (const Medium medium : tiers_)
      if (bytes[static_cast<std::size_t>(medium)] > 0) best.medium = medium;
  }
  best.costs_more = found && best.tokens == 0;
  return best;
}

/// States alone: how many of the leading blocks have KV, as far as that is of use.
std::size_t TierIndex::kv_reaches(std::span<const PrefixHash> prefixes, std::size_t cached,
                                  std::int64_t usable_tokens) const {
  std::size_t end = std::min(prefixes.size(), static_cast<std::size_t>(usable_tokens / block_size_));
  const auto has_state = [&](const PrefixHash& prefix) { return usable_state(nodes_.find(prefix)) != 0; };
  while (end > cached && !has_state(prefixes[end - 1])) --end;
  if (end <= cached) return cached;
  const std::span<const PrefixHash> asked = prefixes.subspan(cached, end - cached);
  return cached + static_cast<std::size_t>(
                      std::clamp<std::int64_t>(options_.kv_elsewhere->leading_blocks(asked), 0, std::ssize(asked)));
}

template <class Visit>
void TierIndex::for_each_pinned(const TierHit& hit, std::span<const PrefixHash> prefixes, std::int64_t cached_tokens,
                                Visit&& visit) {
  const auto end = static_cast<std::size_t>(hit.tokens / block_size_);
  for (auto i = static_cast<std::size_t>(cached_tokens / block_size_); i < end && !states_alone(); ++i)
    visit(nodes_.find(prefixes[i]), CacheContent::kv_block);
  if (!hit.device_state) visit(nodes_.find(prefixes[end - 1]), CacheContent::state);
}

void TierIndex::pin(const TierHit& hit, std::span<const PrefixHash> prefixes, std::int64_t cached_tokens) {
  for_each_pinned(hit, prefixes, cached_tokens,
                  [&](std::uint32_t node, CacheContent content) { ++item(node, content).readers; });
}

void TierIndex::unpin_hit(const TierHit& hit, std::span<const PrefixHash> prefixes, std::int64_t cached_tokens) {
  for_each_pinned(hit, prefixes, cached_tokens,
                  [&](std::uint32_t node, CacheContent content) { unpin(node, content); });
}

void TierIndex::load(RequestId request, const TierHit& hit, std::span<const PrefixHash> prefixes,
                     std::int64_t cached_tokens, std::span<const std::int32_t> kv_blocks,
                     std::span<const SlotId> slots) {
  Load& load = loads_[request.index()];
  load.hit = hit;
  load.failed = false;
  load.nodes.clear();
  std::size_t next = 0;
  for_each_pinned(hit, prefixes, cached_tokens, [&](std::uint32_t node, CacheContent content) {
    load.nodes.push_back(node);
    const Medium from = fastest(item(node, content).in);
    const std::size_t groups = content == CacheContent::state ? groups_ : 1;
    for (std::size_t group = 0; group < groups; ++group) {
      const std::int32_t place = content == CacheContent::state ? slots[group].value() : kv_blocks[next++];
      name({.kind = Transfer::Kind::load,
            .image = key_of(node, content, group),
            .from = from,
            .to = Medium::device,
            .place = place,
            .request = request},
           {Transfer::Kind::load, from, Medium::device, content, node, request});
      ++load.left;
    }
  });
  auto block = static_cast<std::size_t>(cached_tokens / block_size_);
  for (const std::int32_t place : kv_blocks.subspan(next)) {
    const PrefixHash& prefix = prefixes[block++];
    name({.kind = Transfer::Kind::load,
          .image = {.prefix = prefix,
                    .tokens = static_cast<std::int64_t>(block) * block_size_,
                    .content = CacheContent::kv_block},
          .from = Medium::elsewhere,
          .to = Medium::device,
          .place = place,
          .request = request},
         {Transfer::Kind::load, Medium::elsewhere, Medium::device, CacheContent::kv_block, none, request});
    ++load.left;
  }
}

TransferPlan TierIndex::take_transfers() {
  for (const Transfer& transfer : plan_)
    if (transfer.kind != Transfer::Kind::drop) under_way_.take(transfer.id);
  std::swap(plan_, taken_);
  plan_.clear();
  return {taken_};
}

std::optional<TierIndex::WaitEnd> TierIndex::settle(const TransferResult& result) {
  const UnderWay part = *under_way_.find(result.id);
  under_way_.erase(result.id);
  if (part.kind == Transfer::Kind::load) return end_part(part, result.status);
  if (part.kind == Transfer::Kind::find)
    return answered(part, result.status) ? std::optional(WaitEnd{.request = part.request, .asked = true})
                                         : std::nullopt;
  TierItem& item = this->item(part.node, part.content);
  if (part.kind == Transfer::Kind::copy && is_source_lost(result.status)) lost(part.node, part.content, part.from);
  item.failed |= result.status != TransferStatus::done;
  if (--item.parts_coming == 0) arrived(part.node, part.content, part, !item.failed);
  return std::nullopt;
}

std::optional<TierIndex::WaitEnd> TierIndex::end_part(const UnderWay& part, TransferStatus status) {
  Load& load = loads_[part.request.index()];
  require_invariant(load.left > 0, "TierIndex", "a load has no request");
  if (part.from == Medium::elsewhere) {
    load.failed |= status != TransferStatus::done;
  } else if (status == TransferStatus::done) {
    level(part.from).usage.bytes_read +=
        bytes_of(part.content) / static_cast<std::int64_t>(part.content == CacheContent::state ? groups_ : 1);
  } else {
    load.failed = true;
    if (status != TransferStatus::no_room) lost(part.node, part.content, part.from);
  }
  if (--load.left > 0) return std::nullopt;
  if (!load.failed && load.hit.medium != Medium::elsewhere) {
    TierUsage& usage = level(load.hit.medium).usage;
    ++usage.loads;
    usage.hit_tokens += load.hit.gained_tokens;
    usage.saved_s += load.hit.saved_s;
  }
  for (std::size_t i = 0; i < load.nodes.size(); ++i)
    unpin(load.nodes[i],
          i + 1 == load.nodes.size() && !load.hit.device_state ? CacheContent::state : CacheContent::kv_block);
  return WaitEnd{.request = part.request, .done = !load.failed};
}

// What the device gives up.

/// Names a store into the tier. While what has to go from it is still being moved down, what comes goes down at once: a
/// long prompt needs more room than a tier keeps free. False: there is no room, or no place in the queue.
bool TierIndex::store(std::uint32_t node, CacheContent content, Medium to) {
  if (queued_bytes_ + bytes_of(content) > options_.queue_bytes) return false;
  const auto store_in = [&](Medium medium) {
    if (medium != to && content == CacheContent::state && !is_worth_it(medium, node)) return false;
    // What goes to make room may be the last state that needs this KV.
    return make_room(medium, bytes_of(content)) && nodes_[node].is_needed() &&
           begin(Transfer::Kind::store, node, content, Medium::device, medium);
  };
  for (std::optional<Medium> medium = to; medium; medium = tier_below(*medium))
    if (item(node, content).is_at(*medium) || store_in(*medium)) return true;
  return false;
}

void TierIndex::store_state(std::uint32_t node) {
  const auto worthy = std::ranges::find_if(tiers_, [&](Medium tier) { return is_worth_it(tier, node); });
  const Medium to = worthy == tiers_.end() ? last_tier() : *worthy;
  if (nodes_[node].state.is_kept(to)) return;
  Level& tier = level(to);
  if (nodes_[node].made_in == call_) {  // the copy that makes it is not enqueued yet
    ++tier.usage.refused_images;
  } else if (worthy == tiers_.end()) {
    ++tier.usage.dropped_states;
  } else {
    const auto is_needed = [&](const Leaving& leaving) {
      return leaving.tokens <= nodes_[node].tokens && !nodes_[leaving.node].kv.is_kept(to);
    };
    const std::int64_t kv_bytes = std::ranges::count_if(leaving_kv_, is_needed) * options_.kv_image_bytes;
    static_cast<void>(make_room(to, options_.state_image_bytes + kv_bytes));
    if (store(node, CacheContent::state, to)) return;
    ++tier.usage.refused_images;
  }
  state_is_gone(node);
}

/// KV is worth a place where a state behind it is, or will be.
void TierIndex::store_kv(std::uint32_t node) {
  const TierNode& entry = nodes_[node];
  const std::optional<Medium> to = needing_tier(node);
  if (!to || entry.kv.is_kept(*to)) return;
  if (entry.parent != none && (nodes_[entry.parent].kv.in | nodes_[entry.parent].kv.coming) == 0) {
    ++level(first_tier()).usage.refused_images;  // nobody could load it without the block before
    return;
  }
  if (store(node, CacheContent::kv_block, *to)) return;
  ++level(*to).usage.refused_images;
  kv_is_gone(node);
}

void TierIndex::flush() {
  drop_found();
  for (const std::uint32_t node : leaving_states_) {
    if ((nodes_[node].state.in & on_device) == 0) store_state(node);
    let_go(node, CacheContent::state);
    nodes_.drop_need(node, Medium::device);
  }
  std::ranges::sort(leaving_kv_, {}, &Leaving::tokens);
  for (const Leaving& leaving : leaving_kv_) {
    if ((nodes_[leaving.node].kv.in & on_device) == 0 && !states_alone()) store_kv(leaving.node);
    let_go(leaving.node, CacheContent::kv_block);
  }
  for (const std::uint32_t node : incomplete_) let_go(node, CacheContent::state);
  // Before nodes are released: a prune begins at a node that is there.
  for (const std::uint32_t node : leaving_states_) {
    if (nodes_[node].used) prune(node);
  }
  for (const std::uint32_t node : incomplete_) release(node);
  for (std::size_t i = leaving_kv_.size(); i-- > 0;)
    if (nodes_[leaving_kv_[i].node].used) prune(leaving_kv_[i].node);
  incomplete_.clear();
  leaving_states_.clear();
  leaving_kv_.clear();
  for (const std::uint32_t node : to_write_) write_through(node);
  std::swap(to_write_, fresh_);
  fresh_.clear();
  trim();
  ++call_;
}

/// The state and its KV, to the slowest tier, as far as that does not have them.
void TierIndex::write_through(std::uint32_t node) {
  const TierNode& entry = nodes_[node];
  if (!entry.used || (entry.state.in & on_device) == 0 || entry.made_in == call_) return;
  static_cast<void>(write_all_of(node, last_tier()));
}

/// False: there is no room, or no place in the queue.
bool TierIndex::write_all_of(std::uint32_t node, Medium to) {
  if (!write(node, CacheContent::state, to)) return false;
  for (std::uint32_t at = node; at != none; at = nodes_[at].parent)
    if (!write(at, CacheContent::kv_block, to)) return false;
  return true;
}

/// From the fastest medium that has it, which keeps it. False: there is no room, or no place in the queue.
bool TierIndex::write(std::uint32_t node, CacheContent content, Medium to) {
  if (content == CacheContent::kv_block && states_alone()) return true;
  TierItem& item = this->item(node, content);
  const MediumSet sources = item.in & down_to(to);
  if (item.is_at(to) || item.coming != 0 || sources == 0) return true;
  const bool stored = (item.in & on_device) != 0;
  const Medium from = stored ? Medium::device : fastest(sources);
  const Transfer::Kind kind = stored ? Transfer::Kind::store : Transfer::Kind::copy;
  ++item.readers;
  const bool room = make_room(to, bytes_of(content));
  let_go(node, content);
  if (room && begin(kind, node, content, from, to, true)) return true;
  ++level(to).usage.refused_images;
  prune(node);  // the last state that needs this KV may have made room
  return false;
}

void TierIndex::drain() {
  draining_ = true;
  write_all();
  draining_ = false;
  for (std::uint32_t node = 0; node < nodes_.capacity(); ++node)
    if (nodes_[node].used) offer(node);
}

void TierIndex::write_all() {
  for (std::uint32_t node = 0; node < nodes_.capacity(); ++node) {
    if (!nodes_[node].used || nodes_[node].state.in == 0) continue;
    if (!write_all_of(node, durable_tier())) return;
  }
}

/// What was attached of a state whose other images are not there is of no use.
void TierIndex::drop_found() {
  for (std::uint32_t left = std::exchange(found_.groups, 0); left != 0; left &= left - 1) {
    if (found_.medium == Medium::remote) continue;  // shared, as in drop()
    plan_.push_back({.kind = Transfer::Kind::drop,
                     .image = {.prefix = found_.prefix, .tokens = found_.tokens, .group = std::countr_zero(left)},
                     .from = found_.medium,
                     .to = found_.medium});
  }
}

bool TierIndex::attach(Medium medium, const ImageKey& image) {
  Level& tier = level(medium);
  const bool is_part = image.content == CacheContent::state && groups_ > 1;
  if (!is_part || !found_.is_of(medium, image)) drop_found();
  if (tier.usage.bytes + bytes_of(image.content) > tier.capacity) return false;
  const std::uint32_t known = nodes_.find(image.prefix);
  if (known != none && item(known, image.content).is_at(medium)) return true;
  if (is_part) {
    const std::uint32_t part = 1u << static_cast<unsigned>(image.group);
    const bool is_whole = std::popcount(found_.groups | part) == static_cast<int>(groups_);
    if (!is_whole) found_ = {medium, image.prefix, image.tokens, found_.groups | part};
    if (!is_whole) return true;
  }
  const std::uint32_t node = nodes_.intern(image.prefix, {}, image.tokens);
  if (node == none) return false;
  found_.groups = 0;
  enter_tier(node, image.content, medium);
  // A node that was removed and made again may be listed already.
  if (image.content == CacheContent::kv_block && (unclaimed_in_[node] & bit(medium)) == 0) {
    unclaimed_in_[node] |= bit(medium);
    tier.unclaimed.push_back(node);
  }
  return true;
}

void TierIndex::reset() {
  require_state(transfers_under_way() == 0, "reset", "transfers under way", transfers_under_way(), "must be 0");
  drop_found();
  for (std::uint32_t node = 0; node < nodes_.capacity(); ++node) {
    if (!nodes_[node].used) continue;
    for (const CacheContent content : {CacheContent::state, CacheContent::kv_block})
      for (const Medium medium : tiers_)
        if ((item(node, content).in & bit(medium)) != 0) leave_tier(node, content, medium);
  }
  incomplete_.clear();
  leaving_states_.clear();
  leaving_kv_.clear();
  to_write_.clear();
  fresh_.clear();
  for (const Medium medium : tiers_) level(medium).unclaimed.clear();
  std::ranges::fill(unclaimed_in_, MediumSet{0});
  forest_.clear();
  nodes_.clear();
}

void TierIndex::check_invariants() const {
  const auto check = [](bool ok, const char* what) { require_invariant(ok, "TierIndex", what); };
  check(std::popcount(found_.groups) < static_cast<int>(groups_), "a state was attached whole, and is not there");
  nodes_.check_invariants();
  forest_.check_invariants(nodes_.made());
  std::array<std::int64_t, medium_count> bytes = {};
  std::array<std::int64_t, medium_count> states = {};
  std::array<std::int64_t, medium_count> blocks = {};
  std::size_t parts = 0;
  const auto is_unclaimed = [&](std::uint32_t node) {
    return std::ranges::any_of(tiers_, [&](Medium medium) {
      return std::ranges::find(level(medium).unclaimed, node) != level(medium).unclaimed.end();
    });
  };
  for (std::uint32_t node = 0; node < nodes_.made(); ++node) {
    const TierNode& entry = nodes_[node];
    if (!entry.used) continue;
    check(forest_.has_state(node) == ((entry.state.in | entry.state.coming) != 0),
          "a state is not in the forest, or has gone");
    parts += entry.state.parts_coming + entry.kv.parts_coming;
    for (const CacheContent content : {CacheContent::state, CacheContent::kv_block}) {
      const TierItem& item = content == CacheContent::state ? entry.state : entry.kv;
      check((item.in & item.coming) == 0, "an image comes to where it is");
      check((item.coming == 0) == (item.parts_coming == 0), "what is coming is counted wrong");
      for (int m = 1; m < medium_count; ++m) {
        const auto at = static_cast<std::size_t>(m);
        if (item.is_at(static_cast<Medium>(m))) bytes[at] += bytes_of(content);
        if ((item.in & bit(static_cast<Medium>(m))) != 0) ++(content == CacheContent::state ? states : blocks)[at];
      }
    }
    for (const Medium medium : tiers_)
      check(!source(medium).eligible(node) || level(medium).order.contains(source(medium), node),
            "a state in a tier is no candidate");
    if ((entry.kv.in & below_device) == 0 || entry.is_needed()) continue;
    check(entry.kv.readers > 0 || entry.kv.coming != 0 || entry.kv.going || is_unclaimed(node),
          "a tier keeps KV that no state needs");
  }
  for (const Load& load : loads_) parts += static_cast<std::size_t>(load.left);
  parts += forgotten_finds();
  for (const Ask& ask : asks()) parts += static_cast<std::size_t>(ask.left);
  check(parts == transfers_under_way(), "a transfer is lost");
  for (const Transfer& transfer : plan_)
    check(transfer.kind == Transfer::Kind::drop || under_way_.is_named(transfer.id), "a transfer has no part");
  for (int m = 1; m < medium_count; ++m) {
    const auto medium = static_cast<Medium>(m);
    const auto at = static_cast<std::size_t>(medium);
    const TierUsage& usage = level(medium).usage;
    check(usage.bytes == bytes[at] && usage.states == states[at] && usage.kv_blocks == blocks[at],
          "what a tier holds is counted wrong");
    check(usage.bytes <= level(medium).capacity, "a tier holds too much");
  }
}

}  // namespace stateport::detail
