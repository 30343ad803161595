// SPDX-License-Identifier: Apache-2.0
#include "serve/growing_hashes.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace stateport::detail {

PromptHasher::PromptHasher(const RequestCacheOptions& options)
    : hasher_({.kind = options.hash, .block_size_tokens = options.block_size_tokens, .seed = options.hash_seed}) {
  constexpr std::size_t tenant_and_adapter = 2;
  const std::size_t most = block_size() + tenant_and_adapter;  // a key for each token at which media begin
  keys_.reserve(most);
  hasher_.reserve_keys(most);
}

BlockDigest PromptHasher::hash(const BlockDigest& parent, std::size_t index, std::span<const Token> block,
                               const PromptNames& names) {
  keys_.clear();
  if (index == 0 && names.name_space.salt)
    keys_.push_back({.kind = ExtraKey::Kind::tenant_salt, .id = *names.name_space.salt});
  if (index == 0 && names.name_space.extra_key)
    keys_.push_back({.kind = ExtraKey::Kind::adapter, .id = *names.name_space.extra_key});
  const auto first = static_cast<std::int64_t>(index * block_size());
  const auto begin = std::ranges::lower_bound(names.media, first, {}, &MediaKey::first_token);
  for (auto media = begin; media != names.media.end() && media->first_token < first + std::ssize(block); ++media)
    if (media != begin && std::prev(media)->first_token == media->first_token)
      keys_.back().id = NameKey::both(keys_.back().id, media->id);
    else
      keys_.push_back({.kind = ExtraKey::Kind::media, .id = media->id, .first_token = media->first_token - first});
  return hasher_.hash_block(parent, block, keys_);
}

void GrowingHashes::extend(PromptHasher& hasher, std::span<const Token> tokens, const PromptNames& names) {
  const std::size_t block = hasher.block_size();
  for (std::size_t i = size(); (i + 1) * block <= tokens.size(); ++i) {
    last_ = hasher.hash(last_, i, tokens.subspan(i * block, block), names);
    hashes_.append(last_);
  }
}

}  // namespace stateport::detail
