// SPDX-License-Identifier: Apache-2.0
#include "tree/kv_event_source.hpp"

#include "containers/reserve_amortised.hpp"

#include <algorithm>
#include <array>

namespace stateport::detail {

void KvEventSource::reserve(std::size_t new_pages, std::size_t arena_pages) {
  reserve_amortised(prepared_, new_pages);
  reserve_amortised(digests_, arena_pages);
}

void KvEventSource::prepare(std::optional<std::uint32_t> parent, std::span<const Token> tokens,
                            const Namespace& name_space) {
  std::array<ExtraKey, 2> names;
  std::size_t named = 0;
  if (!parent && name_space.salt) names[named++] = {.kind = ExtraKey::Kind::tenant_salt, .id = *name_space.salt};
  if (!parent && name_space.extra_key) names[named++] = {.kind = ExtraKey::Kind::adapter, .id = *name_space.extra_key};
  parent_ = parent ? digests_[*parent] : BlockDigest{};
  prepared_.clear();
  reported_ = 0;
  const auto page = static_cast<std::size_t>(hasher_->options().block_size_tokens);
  for (BlockDigest before = parent_; !tokens.empty(); tokens = tokens.subspan(page), named = 0) {
    before = hasher_->hash_block(before, tokens.first(page), std::span(names).first(named));
    prepared_.push_back(before);
  }
}

void KvEventSource::stored(std::uint32_t first_page, std::uint32_t pages, std::span<const Token> tokens,
                           const Namespace& name_space) {
  if (digests_.size() < std::size_t{first_page} + pages) digests_.resize(std::size_t{first_page} + pages);
  const std::span blocks = std::span(digests_).subspan(first_page, pages);
  std::ranges::copy(std::span(prepared_).subspan(reported_, pages), blocks.begin());
  reported_ += pages;
  tell_({.kind = KvEvent::Kind::stored,
         .blocks = blocks,
         .parent = std::exchange(parent_, blocks.back()),
         .tokens = tokens,
         .name_space = name_space});
}

}  // namespace stateport::detail
