// SPDX-License-Identifier: Apache-2.0
#include "tier/tier_index.hpp"

#include <stateport/core/model/error.hpp>

#include <bit>
#include <utility>

namespace stateport::detail {
namespace {

/// Whether a copy that was answered so did not find its source as it should be. The others speak of where it goes.
bool is_source_lost(TransferStatus status) noexcept {
  using enum TransferStatus;
  return status == gone || status == damaged || status == foreign_layout || status == wrong_position;
}

}  // namespace

TierIndex::TierIndex(const TierSetup& setup)
    : groups_(setup.groups),
      times_(setup.tiers.speeds()),
      contents_(setup, transfers_),
      admission_(contents_),
      finds_(setup, contents_, admission_, transfers_, times_),
      loads_(setup, contents_, admission_, transfers_, times_),
      stores_(setup, contents_, admission_) {
  // An image comes to one tier at a time, and loads end in places of their own.
  const std::size_t coming = contents_.nodes().capacity() * (groups_ + 1);
  const std::size_t loaded = setup.device_blocks + setup.requests * groups_;
  const std::size_t asked = contents_.levels().has(Medium::remote) ? 2 * setup.requests * most_finds(setup) : 0;
  const std::size_t dropped = coming * contents_.levels().tiers().size();
  transfers_.reserve(coming + loaded + asked, dropped);
  // Images that finds find may come to the remote tier and be evicted for others that finds find.
  changes_max_ = 2 * (dropped + asked);
}

PromptPast TierIndex::report_prompt(std::span<const BlockHash> keys, std::span<const PrefixHash> prefixes,
                                    const PromptFacts& prompt, double now_s) {
  TierNodes& nodes = contents_.nodes();
  StateForest& forest = contents_.forest();
  std::size_t next = 0;
  const auto find = [&](BlockHash) -> std::optional<StateForest::Found> {
    const std::uint32_t node = nodes.find(prefixes[next++]);
    if (node == TierNode::none || !forest.has_state(node)) return std::nullopt;
    contents_.touch(node);
    return StateForest::Found{BlockId{static_cast<std::int32_t>(node)}, nodes[node].tokens};
  };
  const PromptPast past = forest.serve(keys, prompt, now_s, find);
  for (const std::uint32_t node : forest.served()) contents_.orders().rank_again(node);
  return past;
}

std::size_t TierIndex::deepest_state(std::span<const PrefixHash> prefixes) const noexcept {
  for (std::size_t blocks = prefixes.size(); blocks > 0; --blocks) {
    const std::uint32_t node = contents_.nodes().find(prefixes[blocks - 1]);
    if (node != TierNode::none && contents_.forest().has_state(node)) return blocks;
  }
  return 0;
}

std::optional<TierIndex::WaitEnd> TierIndex::settle(const TransferResult& result) {
  const UnderWay part = *transfers_.find(result.id);
  transfers_.erase(result.id);
  count_end(part, result.status);
  switch (part.kind) {
    case Transfer::Kind::load:
      if (const std::optional<bool> done = loads_.end_part(part, result.status))
        return WaitEnd{.request = part.request, .done = *done};
      return std::nullopt;
    case Transfer::Kind::find:
      if (finds_.answered(part, result.status)) return WaitEnd{.request = part.request, .asked = true};
      return std::nullopt;
    default:
      break;
  }
  TierItem& item = contents_.item(part.node, part.content);
  if (part.kind == Transfer::Kind::copy && is_source_lost(result.status))
    admission_.lost(part.node, part.content, part.from);
  item.failed |= result.status != TransferStatus::done;
  if (--item.parts_coming == 0) admission_.arrived(part.node, part.content, part, !item.failed);
  return std::nullopt;
}

/// A copy that did not find its source as it should be is an end of the read, any other one of the write.
void TierIndex::count_end(const UnderWay& transfer, TransferStatus status) noexcept {
  const auto end = static_cast<std::size_t>(status);
  if (transfer.kind == Transfer::Kind::load) [[likely]] {
    if (transfer.from != Medium::elsewhere) ++contents_.levels()[transfer.from].usage.reads.ended[end];
  } else if (transfer.kind == Transfer::Kind::find) {
    ++contents_.levels()[transfer.from].usage.finds.ended[end];
  } else {
    const bool is_copy = transfer.kind == Transfer::Kind::copy;
    const bool is_lost = is_copy && is_source_lost(status);
    if (is_lost || (is_copy && status == TransferStatus::done))
      ++contents_.levels()[transfer.from].usage.reads.ended[end];
    if (!is_lost) ++contents_.levels()[transfer.to].usage.writes.ended[end];
  }
}

TierUsage TierIndex::usage(Medium medium) const noexcept {
  TierUsage usage = contents_.levels()[medium].usage;
  const TrafficCounts under_way = transfers_.under_way();
  const auto fill = [&](TierTraffic& traffic, TrafficCounts::Direction direction) {
    for (const CacheContent content : {CacheContent::kv_block, CacheContent::state}) {
      const std::int64_t images = under_way.images(medium, direction, content);
      traffic.transfers += images;
      if (direction != TrafficCounts::find)
        traffic.bytes += images * contents_.bytes_of(content) / static_cast<std::int64_t>(contents_.images_of(content));
    }
  };
  fill(usage.reads, TrafficCounts::read);
  fill(usage.writes, TrafficCounts::write);
  fill(usage.finds, TrafficCounts::find);
  return usage;
}

void TierIndex::flush() {
  drop_found();
  stores_.flush();
}

/// The images of a state that was not attached whole are of no use.
void TierIndex::drop_found() {
  for (std::uint32_t left = std::exchange(found_.groups, 0); left != 0; left &= left - 1)
    transfers_.drop(found_.medium, {.prefix = found_.prefix, .tokens = found_.tokens, .group = std::countr_zero(left)});
}

bool TierIndex::attach(Medium medium, const ImageKey& image) {
  const bool is_part = image.content == CacheContent::state && groups_ > 1;
  if (!is_part || !found_.is_of(medium, image)) drop_found();
  const TierLevels::Level& level = contents_.levels()[medium];
  if (level.usage.bytes + contents_.bytes_of(image.content) > level.capacity) return false;
  TierNodes& nodes = contents_.nodes();
  const std::uint32_t known = nodes.find(image.prefix);
  if (known != TierNode::none && contents_.item(known, image.content).is_at(medium)) return true;
  if (is_part) {
    const std::uint32_t part = 1u << static_cast<unsigned>(image.group);
    const bool is_whole = std::popcount(found_.groups | part) == static_cast<int>(groups_);
    if (!is_whole) found_ = {medium, image.prefix, image.tokens, found_.groups | part};
    if (!is_whole) return true;
  }
  const std::uint32_t node = nodes.intern(image.prefix, {}, image.tokens);
  if (node == TierNode::none) return false;
  found_.groups = 0;
  nodes[node].is_forgotten = false;
  contents_.enter(node, image.content, medium);
  if (image.content == CacheContent::kv_block) admission_.add_unclaimed(node, medium);
  return true;
}

void TierIndex::forget(const Forgotten& forgotten) {
  flush();
  TierNodes& nodes = contents_.nodes();
  const auto is_chosen = [&](std::uint32_t node) {
    return nodes[node].used && (!nodes[node].is_tagged || forgotten(nodes[node].tag));
  };
  for (std::uint32_t node = 0; node < nodes.made(); ++node)
    if (is_chosen(node)) admission_.forget(node);
  for (std::uint32_t node = 0; node < nodes.made(); ++node)
    if (is_chosen(node)) admission_.prune(node);
}

void TierIndex::reset() {
  require_state(transfers_under_way() == 0, "reset", "transfers under way", transfers_under_way(), "must be 0");
  drop_found();
  stores_.clear();
  admission_.forget_unclaimed();
  contents_.clear();
}

void TierIndex::check_invariants() const {
  const auto check = [](bool ok, const char* what) { require_invariant(ok, "TierIndex", what); };
  check(std::popcount(found_.groups) < static_cast<int>(groups_), "a state was attached whole, and is not there");
  contents_.check_invariants();
  transfers_.check_invariants();
  const std::size_t parts = contents_.parts_coming() + loads_.unanswered() + finds_.unanswered();
  check(parts == transfers_.size(), "a transfer is lost");
  for (std::uint32_t node = 0; node < contents_.nodes().made(); ++node) {
    const TierNode& entry = contents_.nodes()[node];
    for (const TierItem* const item : {&entry.kv, &entry.state})
      check(!entry.is_forgotten || item->going || item->readers > 0 || item->in == 0, "forgotten contents stay");
    if (!entry.used || (entry.kv.in & below_device) == 0 || entry.is_needed()) continue;
    check(entry.kv.readers > 0 || entry.kv.coming != 0 || entry.kv.going || admission_.is_unclaimed(node),
          "a tier keeps KV that no state needs");
  }
}

}  // namespace stateport::detail
