// SPDX-License-Identifier: Apache-2.0
#include "tier/tier_loads.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <numeric>

namespace stateport::detail {

TierLoads::TierLoads(const TierSetup& setup, Residency& contents, Admission& admission, TierTransfers& transfers,
                     const LoadTime& times)
    : contents_(contents),
      levels_(contents.levels()),
      nodes_(contents.nodes()),
      admission_(admission),
      transfers_(transfers),
      times_(times),
      block_size_(setup.block_size_tokens),
      kv_elsewhere_(setup.tiers.kv_elsewhere),
      loads_(setup.requests) {
  for (Load& load : loads_) load.nodes.reserve(setup.request_blocks + 1);
}

TierHit TierLoads::find(std::span<const PrefixHash> prefixes, std::int64_t device_tokens, std::int64_t cached_tokens,
                        std::int64_t usable_tokens) {
  constexpr std::uint32_t none = TierNode::none;
  const bool states_alone = contents_.states_alone();
  TierHit best{.walked_tokens = cached_tokens};
  bool found = false;
  MediumBytes kv_bytes = {};
  const auto first = static_cast<std::size_t>(device_tokens / block_size_);
  std::uint32_t before = first > 0 && !states_alone ? nodes_.find(prefixes[first - 1]) : none;
  const auto cached = static_cast<std::size_t>(cached_tokens / block_size_);
  const std::size_t elsewhere = states_alone ? kv_reaches(prefixes, cached, usable_tokens) : 0;
  for (std::size_t i = first; i < prefixes.size(); ++i) {
    const std::uint32_t node = nodes_.find(prefixes[i]);
    if (node != none && before != none && nodes_[node].parent == none) nodes_.link(node, before);
    if (!states_alone) before = node;
    const std::int64_t tokens = static_cast<std::int64_t>(i + 1) * block_size_;
    if (i >= cached && states_alone) {
      if (i >= elsewhere) break;
      best.walked_tokens = tokens;
    } else if (i >= cached) {
      if (node == none || (nodes_[node].kv.in & below_device) == 0) break;
      kv_bytes[index_of(fastest(nodes_[node].kv.in))] += contents_.bytes_of(CacheContent::kv_block);
      best.walked_tokens = tokens;
    }
    // A state whose KV is on the device, too, is the device's own hit.
    const MediumSet states = contents_.usable_state(node) & (i < cached ? below_device : all_media);
    if (states == 0 || tokens > usable_tokens) continue;
    const bool device_state = (states & on_device) != 0;
    auto bytes = kv_bytes;
    if (!device_state) bytes[index_of(fastest(states))] += contents_.bytes_of(CacheContent::state);
    found = true;
    const std::optional<double> saved_s = times_.saved_s(tokens - device_tokens, bytes);
    if (saved_s && *saved_s <= best.saved_s) continue;
    best.tokens = tokens;
    best.device_state = device_state;
    best.gained_tokens = tokens - device_tokens;
    best.saved_s = saved_s.value_or(0);
    best.bytes = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
    best.medium = Medium::elsewhere;
    for (const Medium medium : levels_.tiers())
      if (bytes[index_of(medium)] > 0) best.medium = medium;
  }
  best.costs_more = found && best.tokens == 0;
  return best;
}

/// With KV elsewhere: the number of leading blocks with KV, as far as a state can use it.
std::size_t TierLoads::kv_reaches(std::span<const PrefixHash> prefixes, std::size_t cached,
                                  std::int64_t usable_tokens) const {
  std::size_t end = std::min(prefixes.size(), static_cast<std::size_t>(usable_tokens / block_size_));
  const auto has_state = [&](const PrefixHash& prefix) { return contents_.usable_state(nodes_.find(prefix)) != 0; };
  while (end > cached && !has_state(prefixes[end - 1])) --end;
  if (end <= cached) return cached;
  const std::span<const PrefixHash> asked = prefixes.subspan(cached, end - cached);
  return cached +
         static_cast<std::size_t>(std::clamp<std::int64_t>(kv_elsewhere_->leading_blocks(asked), 0, std::ssize(asked)));
}

template <class Visit>
void TierLoads::for_each_content(const TierHit& hit, std::span<const PrefixHash> prefixes, std::int64_t cached_tokens,
                                 Visit&& visit) {
  const auto end = static_cast<std::size_t>(hit.tokens / block_size_);
  for (auto i = static_cast<std::size_t>(cached_tokens / block_size_); i < end && !contents_.states_alone(); ++i)
    visit(nodes_.find(prefixes[i]), CacheContent::kv_block);
  if (!hit.device_state) visit(nodes_.find(prefixes[end - 1]), CacheContent::state);
}

void TierLoads::hold(const TierHit& hit, std::span<const PrefixHash> prefixes, std::int64_t cached_tokens) {
  for_each_content(hit, prefixes, cached_tokens,
                   [&](std::uint32_t node, CacheContent content) { contents_.hold(node, content); });
}

void TierLoads::let_go(const TierHit& hit, std::span<const PrefixHash> prefixes, std::int64_t cached_tokens) {
  for_each_content(hit, prefixes, cached_tokens,
                   [&](std::uint32_t node, CacheContent content) { admission_.unpin(node, content); });
}

void TierLoads::load(RequestId request, const TierHit& hit, std::span<const PrefixHash> prefixes,
                     std::int64_t cached_tokens, std::span<const std::int32_t> kv_blocks,
                     std::span<const SlotId> slots) {
  Load& load = loads_[request.index()];
  load.hit = hit;
  load.failed = false;
  load.nodes.clear();
  const auto name = [&](const ImageKey& image, Medium from, std::int32_t place, std::uint32_t node) {
    transfers_.name({.kind = Transfer::Kind::load,
                     .image = image,
                     .from = from,
                     .to = Medium::device,
                     .place = place,
                     .request = request},
                    {Transfer::Kind::load, from, Medium::device, image.content, node, request});
    ++load.left;
  };
  std::size_t next = 0;
  for_each_content(hit, prefixes, cached_tokens, [&](std::uint32_t node, CacheContent content) {
    load.nodes.push_back(node);
    const Medium from = fastest(contents_.item(node, content).in);
    for (std::size_t group = 0; group < contents_.images_of(content); ++group)
      name(contents_.key_of(node, content, group), from,
           content == CacheContent::state ? slots[group].value() : kv_blocks[next++], node);
  });
  auto block = static_cast<std::size_t>(cached_tokens / block_size_);
  for (const std::int32_t place : kv_blocks.subspan(next)) {
    const PrefixHash& prefix = prefixes[block++];
    const std::int64_t tokens = static_cast<std::int64_t>(block) * block_size_;
    name({.prefix = prefix, .tokens = tokens, .content = CacheContent::kv_block}, Medium::elsewhere, place,
         TierNode::none);
  }
}

std::optional<bool> TierLoads::end_part(const UnderWay& part, TransferStatus status) {
  Load& load = loads_[part.request.index()];
  require_invariant(load.left > 0, "TierLoads", "a load has no request");
  if (part.from == Medium::elsewhere) {
    load.failed |= status != TransferStatus::done;
  } else if (status == TransferStatus::done) {
    const auto images = static_cast<std::int64_t>(contents_.images_of(part.content));
    levels_[part.from].usage.bytes_read += contents_.bytes_of(part.content) / images;
  } else {
    load.failed = true;
    if (status != TransferStatus::no_room) admission_.lost(part.node, part.content, part.from);
  }
  if (--load.left > 0) return std::nullopt;
  if (!load.failed && load.hit.medium != Medium::elsewhere) {
    TierUsage& usage = levels_[load.hit.medium].usage;
    ++usage.loads;
    usage.hit_tokens += load.hit.gained_tokens;
    usage.saved_s += load.hit.saved_s;
  }
  const std::size_t kv_blocks = load.nodes.size() - (load.hit.device_state ? 0 : 1);
  for (std::size_t i = 0; i < load.nodes.size(); ++i)
    admission_.unpin(load.nodes[i], i < kv_blocks ? CacheContent::kv_block : CacheContent::state);
  // While the load held the state, KV that it found damaged could not take the state along.
  for (const std::uint32_t node : std::span(load.nodes).first(kv_blocks))
    if (load.failed && nodes_[node].used) admission_.kv_is_gone(node);
  return !load.failed;
}

std::size_t TierLoads::unanswered() const noexcept {
  std::size_t images = 0;
  for (const Load& load : loads_) images += static_cast<std::size_t>(load.left);
  return images;
}

}  // namespace stateport::detail
