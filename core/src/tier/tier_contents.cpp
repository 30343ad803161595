// SPDX-License-Identifier: Apache-2.0
#include "tier/tier_contents.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>

namespace stateport {

namespace {

TierSpeeds speeds_of(const TierOptions& options) {
  return {.host_bytes_per_s = options.host_bytes_per_s,
          .file_bytes_per_s = options.file_bytes_per_s,
          .tokens_per_s = options.tokens_per_s,
          .remote_bytes_per_s = options.remote_bytes_per_s,
          .remote_latency_s = options.remote_latency_s};
}

}  // namespace

void check_tier_speeds(const TierSpeeds& speeds, std::string_view argument) {
  const auto check_number = [&](std::string_view name, double value) {
    require(std::isfinite(value) && value >= 0, (std::string(argument) + '.').append(name).c_str(), value,
            "must be finite and not negative");
  };
  check_number("host_bytes_per_s", speeds.host_bytes_per_s);
  check_number("file_bytes_per_s", speeds.file_bytes_per_s);
  check_number("tokens_per_s", speeds.tokens_per_s);
  check_number("remote_bytes_per_s", speeds.remote_bytes_per_s);
  check_number("remote_latency_s", speeds.remote_latency_s);
}

void check_tier_options(const TierOptions& options, std::int64_t state_bytes, std::int64_t kv_bytes) {
  require(options.state_image_bytes >= 0, "tiers.state_image_bytes", options.state_image_bytes, "must not be negative");
  require(options.kv_image_bytes >= 0, "tiers.kv_image_bytes", options.kv_image_bytes, "must not be negative");
  require(options.queue_bytes >= 0, "tiers.queue_bytes", options.queue_bytes, "must not be negative");
  check_tier_speeds(speeds_of(options), "tiers");
  require(options.max_finds == -1 || options.max_finds >= 1, "tiers.max_finds", options.max_finds,
          "must be at least 1, or -1 for none");
  require(!options.write_through || options.file_bytes > 0 || options.remote_bytes > 0, "tiers.write_through",
          options.write_through, "needs a file tier or a remote tier");
  const auto check_room = [&](const char* argument, std::int64_t bytes) {
    require(bytes >= 0, argument, bytes, "must not be negative");
    require(bytes == 0 || bytes >= state_bytes + kv_bytes, argument, bytes,
            "is less than a state and a block of KV take");
  };
  check_room("tiers.host_bytes", options.host_bytes);
  check_room("tiers.file_bytes", options.file_bytes);
  check_room("tiers.remote_bytes", options.remote_bytes);
}

namespace detail {
namespace {

constexpr double average_weight = 0.9;   // of what the moving average of the ranks of victims was before
constexpr double full_enough = 0.98;     // from here on a tier takes only what is worth more than its victims
constexpr std::int64_t room_parts = 50;  // a tier above another one keeps 1 part of so many free

/// A tier may hold what the device holds, and its own. Nodes without content are few.
std::size_t node_capacity(const TierSetup& setup) {
  const TierOptions& tiers = setup.tiers;
  const std::int64_t image_bytes = tiers.kv_elsewhere != nullptr ? tiers.state_image_bytes : tiers.kv_image_bytes;
  const auto images = [&](std::int64_t bytes) {
    return static_cast<std::size_t>(bytes / std::max<std::int64_t>(image_bytes, 1));
  };
  const std::size_t nodes = setup.device_blocks + images(tiers.host_bytes) + images(tiers.file_bytes) +
                            images(tiers.remote_bytes) + setup.states;
  return std::min<std::size_t>(nodes + nodes / 8 + 64, INT32_MAX);
}

double load_speed(const TierSpeeds& speeds, Medium tier) noexcept {
  if (tier == Medium::remote) return speeds.remote_bytes_per_s;
  return tier == Medium::host ? speeds.host_bytes_per_s : speeds.file_bytes_per_s;
}

std::shared_ptr<EvictionPolicy> tier_policy(const TierSetup& setup) {
  const EvictionOrder order = setup.eviction == EvictionOrder::mru ? EvictionOrder::lru : setup.eviction;
  return make_eviction_policy(order, setup.eviction_options, setup.memory);
}

}  // namespace

TierContents::TierContents(const TierSetup& setup)
    : options_(setup.tiers),
      speeds_(speeds_of(setup.tiers)),
      block_size_(setup.block_size_tokens),
      groups_(setup.groups),
      listener_(setup.listener),
      policy_(tier_policy(setup)),
      ranks_(policy_->learning() != nullptr && policy_->learning()->observes_prompts()),
      nodes_(node_capacity(setup), setup.groups),
      forest_(policy_, nodes_, setup.request_blocks, true) {
  require(setup.groups <= 32, "groups", setup.groups, "at most 32 with tiers");
  level(Medium::host).capacity = options_.host_bytes;
  level(Medium::file).capacity = options_.file_bytes;
  level(Medium::remote).capacity = options_.remote_bytes;
  for (const Medium medium : {Medium::host, Medium::file, Medium::remote})
    if (has(medium)) tiers_.push_back(medium);
  for (const Medium medium : tiers_) {
    Level& tier = level(medium);
    tier.order = VictimOrder<>(policy_->traits());
    tier.order.reserve(nodes_.capacity());
    tier.unclaimed.reserve(nodes_.capacity());
  }
  behind_.reserve(nodes_.capacity());
  unclaimed_in_.resize(nodes_.capacity(), 0);
}

std::optional<double> TierContents::time_saved(std::int64_t tokens, const MediumBytes& bytes) const noexcept {
  if (speeds_.tokens_per_s <= 0) return std::nullopt;
  double saved_s = static_cast<double>(tokens) / speeds_.tokens_per_s;
  for (const Medium medium : tiers_) {
    const std::int64_t wanted = bytes[static_cast<std::size_t>(medium)];
    if (wanted == 0) continue;
    const double bytes_per_s = load_speed(speeds_, medium);
    if (bytes_per_s <= 0) return std::nullopt;
    saved_s -= static_cast<double>(wanted) / bytes_per_s;
    if (medium == Medium::remote) saved_s -= speeds_.remote_latency_s;
  }
  return saved_s;
}

std::optional<Medium> TierContents::needing_tier(std::uint32_t node) const noexcept {
  for (const Medium tier : tiers_)
    if (nodes_[node].is_needed_in(tier)) return tier;
  return std::nullopt;
}

ImageKey TierContents::key_of(std::uint32_t node, CacheContent content, std::size_t group) const noexcept {
  return {.prefix = nodes_[node].prefix,
          .tokens = nodes_[node].tokens,
          .content = content,
          .group = static_cast<std::int32_t>(group)};
}

Medium TierContents::fastest(MediumSet set) noexcept {
  return static_cast<Medium>(std::countr_zero(static_cast<unsigned>(set & below_device)));
}

void TierContents::tell(Medium medium, bool stored, std::uint32_t node, CacheContent content) {
  if (listener_ == nullptr) return;
  const std::size_t groups = content == CacheContent::state ? groups_ : 1;
  for (std::size_t group = 0; group < groups; ++group) listener_->on_tier(medium, stored, key_of(node, content, group));
}

/// The host gives up what is on the device; slower tiers keep it.
void TierContents::on_device_again(std::uint32_t node, CacheContent content) {
  TierItem& item = this->item(node, content);
  if ((item.in & on_device) == 0 || (item.in & bit(Medium::host)) == 0 || item.readers > 0 || item.going) return;
  leave_tier(node, content, Medium::host);
  if (content == CacheContent::state) prune(node);
}

void TierContents::unpin(std::uint32_t node, CacheContent content) {
  let_go(node, content);
  if (item(node, content).readers > 0) return;
  on_device_again(node, content);
  prune(node);
}

/// One reader less. While there was one, the orders may have passed over the state.
void TierContents::let_go(std::uint32_t node, CacheContent content) {
  if (--item(node, content).readers == 0 && content == CacheContent::state) offer(node);
}

/// The state may be evicted again from the tiers that have it.
void TierContents::offer(std::uint32_t node) {
  for (const Medium medium : tiers_)
    if ((nodes_[node].state.in & bit(medium)) != 0) level(medium).order.offer(source(medium), node);
}

// Transfers.

void TierContents::name(const Transfer& transfer, const UnderWay& under_way) {
  plan_.push_back(transfer);
  plan_.back().id = under_way_.name(under_way);
}

/// False: the queue is full.
bool TierContents::begin(Transfer::Kind kind, std::uint32_t node, CacheContent content, Medium from, Medium to,
                         bool stays) {
  const std::int64_t bytes = bytes_of(content);
  if (queued_bytes_ + bytes > options_.queue_bytes) return false;
  queued_bytes_ += bytes;
  level(to).usage.bytes += bytes;
  TierItem& item = this->item(node, content);
  const std::size_t groups = content == CacheContent::state ? groups_ : 1;
  item.coming |= bit(to);
  item.going = kind == Transfer::Kind::copy;
  if (item.going && !stays) level(from).going_bytes += bytes;
  item.failed = false;
  item.lost = 0;
  item.parts_coming = static_cast<std::uint8_t>(groups);
  if (content == CacheContent::state) nodes_.add_need(node, to);
  for (std::size_t group = 0; group < groups; ++group) {
    std::int32_t place = -1;
    if (kind == Transfer::Kind::store)
      place = content == CacheContent::state ? nodes_.slots(node)[group] : nodes_[node].kv_block;
    name({.kind = kind, .image = key_of(node, content, group), .from = from, .to = to, .place = place},
         {kind, from, to, content, node, {}, stays});
  }
  return true;
}

void TierContents::arrived(std::uint32_t node, CacheContent content, const UnderWay& transfer, bool done) {
  TierItem& item = this->item(node, content);
  Level& tier = level(transfer.to);
  const std::int64_t bytes = bytes_of(content);
  const bool copied = transfer.kind == Transfer::Kind::copy;
  queued_bytes_ -= bytes;
  item.coming &= static_cast<MediumSet>(~bit(transfer.to));
  item.going = false;
  if (copied && !transfer.stays) level(transfer.from).going_bytes -= bytes;
  // What a load found damaged meanwhile may be what the tier had of it, and kept.
  const bool is_lost = (item.lost & bit(transfer.to)) != 0;
  done = done && !is_lost;
  if (done) {
    item.in |= bit(transfer.to);
    ++(content == CacheContent::state ? tier.usage.states : tier.usage.kv_blocks);
    tier.usage.bytes_written += bytes;
    if (copied) level(transfer.from).usage.bytes_read += bytes;
    tell(transfer.to, true, node, content);
    if (content == CacheContent::state) tier.order.offer(source(transfer.to), node);
  } else {
    tier.usage.bytes -= bytes;
    ++tier.usage.refused_images;
    if (content == CacheContent::state) nodes_.drop_need(node, transfer.to);
    // Some of its groups may have arrived.
    if (is_lost || (content == CacheContent::state && groups_ > 1)) drop(node, content, transfer.to);
  }
  if (copied && (item.in & bit(transfer.from)) != 0) {
    // What could not be moved must go all the same: else nothing makes room again.
    const bool moves = !transfer.stays && (done || item.readers == 0);
    if (moves || (item.lost & bit(transfer.from)) != 0) leave_tier(node, content, transfer.from);
    if (content == CacheContent::state) offer(node);
  }
  on_device_again(node, content);
  if (content == CacheContent::state)
    state_is_gone(node);
  else
    kv_is_gone(node);
  if (nodes_[node].used) prune(node);
}

/// A load or a copy did not find the image as it should be.
void TierContents::lost(std::uint32_t node, CacheContent content, Medium medium) {
  TierItem& item = this->item(node, content);
  ++level(medium).usage.lost_images;
  item.lost |= bit(medium);
  if ((item.in & bit(medium)) == 0 || item.going) return;
  leave_tier(node, content, medium);
  if (content == CacheContent::state) {
    state_is_gone(node);
    prune(node);
  } else {
    kv_is_gone(node);
  }
}

// Room.

double TierContents::rank(std::uint32_t node) const noexcept {
  const VictimKey key = forest_.key(node);
  return std::bit_cast<double>(static_cast<std::uint64_t>(static_cast<std::uint32_t>(key.rank())) << 32 |
                               key.order() >> 32);
}

bool TierContents::is_worth_it(Medium medium, std::uint32_t node) {
  Level& tier = level(medium);
  if (ranks_) {
    const bool full = static_cast<double>(tier.usage.bytes) >= full_enough * static_cast<double>(tier.capacity);
    return !full || rank(node) >= tier.victim_rank;
  }
  const bool given_up = (nodes_[node].state.given_up & bit(medium)) != 0;
  if (!given_up || tier.usage.bytes + options_.state_image_bytes <= tier.capacity) return true;
  const auto victim = tier.order.next(source(medium));
  return !victim || tier.order.precedes(source(medium), *victim, node);
}

/// Evicts states until so many bytes are free. A victim that has to be moved down first makes no room yet. False: there
/// is too little.
bool TierContents::make_room(Medium medium, std::int64_t bytes) {
  Level& tier = level(medium);
  if (bytes > tier.capacity) return false;
  while (tier.usage.bytes + bytes > tier.capacity) {
    if (tier.usage.bytes - tier.going_bytes + bytes <= tier.capacity) return false;
    const auto victim = tier.order.next(source(medium));
    if (!victim && !drop_unclaimed(medium)) return false;
    if (!victim) continue;
    // What is moved is not gone; gdsf's clock follows what it chose all the same, as on the device.
    LearningPolicy* const learning = policy_->learning();
    if (learning != nullptr && !learning->is_worthless(*victim)) learning->chosen(forest_.facts(*victim));
    if (ranks_) tier.victim_rank = average_weight * tier.victim_rank + (1 - average_weight) * rank(*victim);
    move_state(*victim, medium);
  }
  return true;
}

/// KV that the tier had before the cache was made, and that no prompt has asked for: no state is known to need it.
/// False: there is none.
bool TierContents::drop_unclaimed(Medium medium) {
  std::vector<std::uint32_t>& unclaimed = level(medium).unclaimed;
  while (!unclaimed.empty()) {
    const std::uint32_t node = unclaimed.back();
    unclaimed.pop_back();
    unclaimed_in_[node] &= static_cast<MediumSet>(~bit(medium));
    const TierItem& kv = nodes_[node].kv;
    if (!nodes_[node].used || (kv.in & bit(medium)) == 0 || kv.readers > 0 || kv.going) continue;
    if (nodes_[node].is_needed_in(medium)) continue;
    leave_tier(node, CacheContent::kv_block, medium);
    release(node);
    return true;
  }
  return false;
}

/// Moves are not done at once: above another tier a tier keeps some room for what comes next. The slower ones first,
/// because they take what the faster ones give up.
void TierContents::trim() {
  for (std::size_t i = tiers_.size() - 1; i-- > 0;) {
    const Medium medium = tiers_[i];
    const std::int64_t capacity = level(medium).capacity;
    const std::int64_t room = std::max(capacity / room_parts, options_.state_image_bytes + options_.kv_image_bytes);
    static_cast<void>(make_room(medium, std::min(room, capacity)));
  }
}

/// To the next tier that has room for it, or away. What the next one has already, or what is on its way into any, just
/// goes.
void TierContents::move_state(std::uint32_t node, Medium from) {
  TierItem& state = nodes_[node].state;
  const std::optional<Medium> next = tier_below(from);
  if (!next || state.is_at(*next) || state.coming != 0) return evict_state(node, from);
  level(from).order.erase(source(from), node);
  const bool worth = is_worth_it(*next, node);
  ++state.readers;  // what goes to make room may have KV that this state needs
  std::optional<Medium> to = next;
  for (; to && !state.is_at(*to); to = tier_below(*to))
    if (is_worth_it(*to, node) && make_room(*to, options_.state_image_bytes)) break;
  let_go(node, CacheContent::state);
  const bool moves = to && !state.is_at(*to);
  if (moves && begin(Transfer::Kind::copy, node, CacheContent::state, from, *to)) return;
  TierUsage& usage = level(*next).usage;
  ++(worth ? usage.refused_images : usage.dropped_states);
  evict_state(node, from);
}

/// The tier has this image, as somebody stored it before.
void TierContents::enter_tier(std::uint32_t node, CacheContent content, Medium medium) {
  Level& tier = level(medium);
  item(node, content).in |= bit(medium);
  tier.usage.bytes += bytes_of(content);
  ++(content == CacheContent::state ? tier.usage.states : tier.usage.kv_blocks);
  tell(medium, true, node, content);
  if (content != CacheContent::state) return;
  nodes_.add_need(node, medium);
  if (!forest_.has_state(node)) forest_.store(BlockId{static_cast<std::int32_t>(node)});
  tier.order.offer(source(medium), node);
}

/// The remote tier is shared, and gives up its contents itself.
void TierContents::drop(std::uint32_t node, CacheContent content, Medium medium) {
  if (medium == Medium::remote) return;
  const std::size_t groups = content == CacheContent::state ? groups_ : 1;
  for (std::size_t group = 0; group < groups; ++group)
    plan_.push_back(
        {.kind = Transfer::Kind::drop, .image = key_of(node, content, group), .from = medium, .to = medium});
}

void TierContents::leave_tier(std::uint32_t node, CacheContent content, Medium medium) {
  TierItem& item = this->item(node, content);
  Level& tier = level(medium);
  item.in &= static_cast<MediumSet>(~bit(medium));
  tier.usage.bytes -= bytes_of(content);
  --(content == CacheContent::state ? tier.usage.states : tier.usage.kv_blocks);
  drop(node, content, medium);
  tell(medium, false, node, content);
  if (content != CacheContent::state) return;
  tier.order.erase(source(medium), node);
  nodes_.drop_need(node, medium);
}

void TierContents::evict_state(std::uint32_t node, Medium medium) {
  ++level(medium).usage.evicted_states;
  nodes_[node].state.given_up |= bit(medium);
  leave_tier(node, CacheContent::state, medium);
  state_is_gone(node);
  prune(node);
}

void TierContents::prune(std::uint32_t node) {
  std::uint32_t first = node;
  for (const Medium medium : tiers_)
    for (std::uint32_t at = first; at != none && nodes_[at].used && !nodes_[at].is_needed_in(medium);) {
      const std::uint32_t parent = nodes_[at].parent;
      prune_block(at, medium);
      const std::uint32_t left = nodes_[at].used ? release(at) : none;
      if (at == first && left != at) first = left;  // slower tiers may have KV of the blocks before it
      at = left == at ? parent : left;
    }
  if (first != none) release(first);
}

/// No state needs this KV there. It goes to the tier where one does. What makes room for that may come here again.
void TierContents::prune_block(std::uint32_t node, Medium medium) {
  TierItem& kv = nodes_[node].kv;
  if ((kv.in & bit(medium)) == 0 || kv.readers > 0 || kv.going) return;
  const bool only_here = (kv.in & ~bit(medium)) == 0 && kv.coming == 0;
  const bool stays = (kv.in & on_device) != 0 || kv.coming != 0;
  if (const auto to = needing_tier(node); to && !stays && !kv.is_at(*to)) {
    ++kv.readers;
    const bool room = make_room(*to, options_.kv_image_bytes);
    let_go(node, CacheContent::kv_block);
    if (room && begin(Transfer::Kind::copy, node, CacheContent::kv_block, medium, *to)) return;
  }
  leave_tier(node, CacheContent::kv_block, medium);
  if (only_here) kv_is_gone(node);
}

/// No tier and not the device has the state any more.
void TierContents::state_is_gone(std::uint32_t node) {
  const TierItem& state = nodes_[node].state;
  if ((state.in | state.coming) != 0 || !forest_.has_state(node)) return;
  const std::uint32_t heir = forest_.lose(BlockId{static_cast<std::int32_t>(node)});
  if (heir == StateForest::none) return;
  for (const Medium medium : tiers_) level(medium).order.rank_again(source(medium), heir);
}

/// If no tier and not the device has the KV of a block any more, nobody can load what lies behind it.
void TierContents::kv_is_gone(std::uint32_t node) {
  const TierNode& entry = nodes_[node];
  if ((entry.kv.in | entry.kv.coming) != 0 || !entry.is_needed()) return;
  // What an eviction does may come here again: what is listed before `first` has its turn afterwards.
  const std::size_t first = behind_.size();
  const auto list = [&](std::uint32_t at) {
    if (!std::exchange(nodes_[at].listed, true)) behind_.push_back(at);
  };
  list(node);
  for (std::size_t i = first; i < behind_.size(); ++i)
    for (std::uint32_t child = nodes_[behind_[i]].first_child; child != none; child = nodes_[child].next)
      if (nodes_[child].is_needed()) list(child);
  while (behind_.size() > first) {
    const std::uint32_t last = behind_.back();
    behind_.pop_back();
    nodes_[last].listed = false;
    for (const Medium medium : tiers_) {
      const TierItem& state = nodes_[last].state;
      if (!nodes_[last].used || (state.in & bit(medium)) == 0 || state.readers > 0 || state.going) continue;
      evict_state(last, medium);
    }
  }
}

std::uint32_t TierContents::release(std::uint32_t node) {
  if (!nodes_[node].used) return none;
  return nodes_.release(node, [&](std::uint32_t gone) {
    if (forest_.has_state(gone)) static_cast<void>(forest_.lose(BlockId{static_cast<std::int32_t>(gone)}));
    forest_.forget(BlockId{static_cast<std::int32_t>(gone)});
  });
}

}  // namespace detail
}  // namespace stateport
