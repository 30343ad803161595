// SPDX-License-Identifier: Apache-2.0
#include "tier/remote_finds.hpp"

#include <algorithm>
#include <ranges>
#include <utility>

namespace stateport::detail {

RemoteFinds::RemoteFinds(const TierSetup& setup, Residency& contents, Admission& admission, TierTransfers& transfers,
                         const LoadTime& times)
    : contents_(contents),
      levels_(contents.levels()),
      nodes_(contents.nodes()),
      admission_(admission),
      transfers_(transfers),
      times_(times),
      block_size_(setup.block_size_tokens),
      groups_(setup.groups),
      grid_(setup.state_grid_tokens),
      max_finds_(static_cast<std::size_t>(std::max(setup.tiers.max_finds, 0))),
      asks_(setup.requests),
      forgotten_max_(setup.requests * most_finds(setup)) {
  for (Ask& ask : asks_)
    if (levels_.has(Medium::remote)) ask.images.reserve(setup.request_blocks);
}

bool RemoteFinds::ask_states(RequestId request, const PromptReach& prompt) {
  if (!may_ask()) return false;
  Ask& ask = new_ask(request, CacheContent::state);
  const std::size_t most = max_finds_ / groups_;
  for (std::int64_t tokens = usable_reach(prompt) / grid_ * grid_; tokens > prompt.device_tokens; tokens -= grid_) {
    const PrefixHash& prefix = prompt.prefixes[static_cast<std::size_t>(tokens / block_size_) - 1];
    const std::uint32_t node = nodes_.find(prefix);
    if (ask.images.size() == most || (node != TierNode::none && nodes_[node].state.is_below())) break;
    if (tokens > prompt.walked_tokens && (contents_.usable_state(node) & on_device) != 0) break;
    const std::int64_t missing = std::max<std::int64_t>(tokens - prompt.walked_tokens, 0) / block_size_;
    MediumBytes bytes = {};
    bytes[index_of(Medium::remote)] =
        contents_.bytes_of(CacheContent::state) +
        (contents_.states_alone() ? 0 : missing * contents_.bytes_of(CacheContent::kv_block));
    if (may_be_worth(prompt, tokens, bytes)) ask.images.push_back({.prefix = prefix, .tokens = tokens});
  }
  return begin_ask(request);
}

/// Behind these tokens no state is of use. KV that is kept elsewhere was asked for up to the deepest state that is
/// known: if it does not reach that state, it reaches no deeper one.
std::int64_t RemoteFinds::usable_reach(const PromptReach& prompt) const noexcept {
  if (!contents_.states_alone()) return prompt.usable_tokens;
  const auto walked = static_cast<std::size_t>(prompt.walked_tokens / block_size_);
  const auto usable = static_cast<std::size_t>(prompt.usable_tokens / block_size_);
  const auto beyond = prompt.prefixes.first(usable).subspan(std::min(walked, usable));
  const bool is_cut = std::ranges::any_of(
      beyond, [&](const PrefixHash& prefix) { return contents_.usable_state(nodes_.find(prefix)) != 0; });
  return is_cut ? prompt.walked_tokens : prompt.usable_tokens;
}

bool RemoteFinds::ask_kv(RequestId request, const PromptReach& prompt) {
  if (!may_ask() || contents_.states_alone()) return false;
  const auto first = static_cast<std::size_t>(prompt.walked_tokens / block_size_);
  auto end = static_cast<std::size_t>(prompt.usable_tokens / block_size_);
  MediumSet state = 0;
  for (; end > first; --end) {
    state = contents_.usable_state(nodes_.find(prompt.prefixes[end - 1]));
    if (state != 0) break;
  }
  if (end <= first) return false;
  Ask& ask = new_ask(request, CacheContent::kv_block);
  if (first > 0) ask.before = prompt.prefixes[first - 1];
  MediumBytes bytes = {};
  if ((state & on_device) == 0) bytes[index_of(fastest(state))] = contents_.bytes_of(CacheContent::state);
  for (std::size_t i = first; i < end; ++i) {
    const bool known = is_kv_below(prompt.prefixes[i]);
    ask.images.push_back(
        {.prefix = prompt.prefixes[i], .tokens = static_cast<std::int64_t>(i + 1) * block_size_, .known = known});
    if (!known) bytes[index_of(Medium::remote)] += contents_.bytes_of(CacheContent::kv_block);
  }
  return may_be_worth(prompt, static_cast<std::int64_t>(end) * block_size_, bytes) && begin_ask(request);
}

bool RemoteFinds::may_be_worth(const PromptReach& prompt, std::int64_t tokens,
                               const MediumBytes& bytes) const noexcept {
  const std::optional<double> saved_s = times_.saved_s(tokens - prompt.device_tokens, bytes);
  return !saved_s || *saved_s > prompt.saved_s;
}

RemoteFinds::Ask& RemoteFinds::new_ask(RequestId request, CacheContent content) noexcept {
  Ask& ask = asks_[request.index()];
  ask.request = request;
  ask.content = content;
  ask.images.clear();
  ask.before = {};
  ask.left = 0;
  ask.is_forgotten = false;
  return ask;
}

bool RemoteFinds::begin_ask(RequestId request) {
  Ask& ask = asks_[request.index()];
  const std::size_t groups = contents_.images_of(ask.content);
  for (std::uint32_t at = 0; at < ask.images.size(); ++at) {
    const Ask::Image& image = ask.images[at];
    for (std::size_t group = 0; group < groups && !image.known; ++group) {
      transfers_.name({.kind = Transfer::Kind::find,
                       .image = {.prefix = image.prefix,
                                 .tokens = image.tokens,
                                 .content = ask.content,
                                 .group = static_cast<std::int32_t>(group)},
                       .from = Medium::remote,
                       .to = Medium::remote,
                       .request = request},
                      {Transfer::Kind::find, Medium::remote, Medium::remote, ask.content, at, request});
      ++ask.left;
    }
  }
  return ask.left > 0;
}

bool RemoteFinds::answered(const UnderWay& find, TransferStatus status) {
  TierUsage& usage = levels_[Medium::remote].usage;
  ++usage.asked_images;
  if (status == TransferStatus::done) ++usage.found_images;
  if (!is_awaited(find)) {
    --forgotten_;
    return false;
  }
  Ask& ask = asks_[find.request.index()];
  require_invariant(ask.left > 0, "RemoteFinds", "a find has no request");
  if (status == TransferStatus::done) ++ask.images[find.node].found;
  if (--ask.left > 0) return false;
  if (ask.is_forgotten) return true;
  if (ask.content == CacheContent::kv_block) {
    remember_kv(ask.images, ask.before);
    return true;
  }
  for (const Ask::Image& image : ask.images | std::views::reverse)
    if (image.found == groups_) static_cast<void>(remember(image, {}, CacheContent::state));
  return true;
}

void RemoteFinds::forget(RequestId request) noexcept {
  Ask& ask = asks_[request.index()];
  forgotten_ += static_cast<std::size_t>(std::exchange(ask.left, 0));
  ask.request = {};
}

std::size_t RemoteFinds::unanswered() const noexcept {
  std::size_t finds = forgotten_;
  for (const Ask& ask : asks_) finds += static_cast<std::size_t>(ask.left);
  return finds;
}

bool RemoteFinds::may_ask() const noexcept {
  return levels_.has(Medium::remote) && forgotten_ <= forgotten_max_;
}

bool RemoteFinds::is_kv_below(const PrefixHash& prefix) const noexcept {
  const std::uint32_t node = nodes_.find(prefix);
  return node != TierNode::none && (nodes_[node].kv.in & below_device) != 0;
}

/// The node of an image that the remote tier has; none: there is no room, or no number left for it.
std::uint32_t RemoteFinds::remember(const Ask::Image& image, const PrefixHash& parent, CacheContent content) {
  const std::uint32_t known = nodes_.find(image.prefix);
  const bool is_there = known != TierNode::none && contents_.item(known, content).is_at(Medium::remote);
  if (!is_there && !admission_.make_room(Medium::remote, contents_.bytes_of(content))) return TierNode::none;
  const std::uint32_t node = nodes_.intern(image.prefix, parent, image.tokens);
  if (node == TierNode::none || contents_.item(node, content).is_at(Medium::remote)) return node;
  nodes_[node].is_forgotten = false;
  if (content == CacheContent::state) contents_.touch(node);
  contents_.enter(node, content, Medium::remote);
  return node;
}

/// Evictions for one block must not take the blocks before it, nor the state behind them.
void RemoteFinds::remember_kv(std::span<Ask::Image> images, const PrefixHash& before) {
  const std::uint32_t state = nodes_.find(images.back().prefix);
  if (state != TierNode::none) contents_.hold(state, CacheContent::state);
  std::size_t held = 0;
  PrefixHash parent = before;
  for (Ask::Image& image : images) {
    if (is_kv_below(image.prefix))
      image.node = nodes_.intern(image.prefix, parent, image.tokens);
    else if (image.found > 0)
      image.node = remember(image, parent, CacheContent::kv_block);
    if (image.node == TierNode::none) break;
    contents_.hold(image.node, CacheContent::kv_block);
    ++held;
    parent = image.prefix;
  }
  if (state != TierNode::none) admission_.unpin(state, CacheContent::state);
  forget_states(images.subspan(held));
  for (const Ask::Image& image : images.first(held) | std::views::reverse)
    admission_.unpin(image.node, CacheContent::kv_block);
}

void RemoteFinds::forget_states(std::span<const Ask::Image> images) {
  for (const Ask::Image& image : images) {
    const std::uint32_t node = nodes_.find(image.prefix);
    if (node == TierNode::none) continue;
    const TierItem& state = nodes_[node].state;
    if ((state.in & bit(Medium::remote)) != 0 && state.readers == 0 && !state.going)
      admission_.evict_state(node, Medium::remote);
  }
}

}  // namespace stateport::detail
