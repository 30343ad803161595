// SPDX-License-Identifier: Apache-2.0
#include "tree/kv_event_source.hpp"

#include "containers/ready_vector.hpp"

#include <algorithm>
#include <array>

namespace stateport::detail {

void KvEventSource::reserve(std::uint32_t arena_pages, std::uint32_t pages, std::span<const Namespace> names) {
  if (digests_.size() < arena_pages) digests_.resize(arena_pages);
  reserve_amortised(prepared_, pages);
  for (const Namespace& name : names)
    hasher_->reserve_keys(2, name.salt.value_or("").size() + name.extra_key.value_or("").size());
}

void KvEventSource::prepare(std::optional<std::uint32_t> parent, std::span<const Token> tokens,
                            const Namespace& name_space, std::uint32_t arena_pages) {
  if (digests_.size() < arena_pages) digests_.resize(arena_pages);
  std::array<ExtraKey, 2> names;
  std::size_t named = 0;
  if (!parent && name_space.salt) names[named++] = {.kind = ExtraKey::Kind::tenant_salt, .id = *name_space.salt};
  if (!parent && name_space.extra_key) names[named++] = {.kind = ExtraKey::Kind::adapter, .id = *name_space.extra_key};
  parent_ = parent ? digests_[*parent] : BlockDigest{};
  prepared_.clear();
  const auto page = static_cast<std::size_t>(hasher_->options().block_size_tokens);
  for (BlockDigest before = parent_; !tokens.empty(); tokens = tokens.subspan(page), named = 0) {
    before = hasher_->hash_block(before, tokens.first(page), std::span(names).first(named));
    prepared_.push_back(before);
  }
}

void KvEventSource::stored(std::uint32_t first_page, std::span<const Token> tokens, const Namespace& name_space) {
  std::ranges::copy(prepared_, digests_.begin() + static_cast<std::ptrdiff_t>(first_page));
  tell_({.kind = KvEvent::Kind::stored,
         .blocks = std::span(digests_).subspan(first_page, prepared_.size()),
         .parent = parent_,
         .tokens = tokens,
         .name_space = name_space});
}

}  // namespace stateport::detail
