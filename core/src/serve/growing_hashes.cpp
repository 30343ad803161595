// SPDX-License-Identifier: Apache-2.0
#include "serve/growing_hashes.hpp"

#include <cstdint>

namespace stateport::detail {

void GrowingHashes::extend(BlockHasher& hasher, std::span<const Token> tokens, const PromptNames& names,
                           std::vector<ExtraKey>& scratch) {
  const auto block = static_cast<std::size_t>(hasher.options().block_size_tokens);
  for (std::size_t i = size(); (i + 1) * block <= tokens.size(); ++i) {
    scratch.clear();
    if (i == 0 && names.name_space.salt)
      scratch.push_back({.kind = ExtraKey::Kind::tenant_salt, .id = *names.name_space.salt});
    if (i == 0 && names.name_space.extra_key)
      scratch.push_back({.kind = ExtraKey::Kind::adapter, .id = *names.name_space.extra_key});
    const auto first = static_cast<std::int64_t>(i * block);
    for (const MediaKey& media : names.media)
      if (media.first_token >= first && media.first_token < first + static_cast<std::int64_t>(block))
        scratch.push_back({.kind = ExtraKey::Kind::media, .id = media.id, .first_token = media.first_token - first});
    last_ = hasher.hash_block(last_, tokens.subspan(i * block, block), scratch);
    hashes_.append(last_);
  }
}

void reserve_keys(BlockHasher& hasher, const PromptNames& names, std::vector<ExtraKey>& scratch) {
  std::size_t id_bytes = names.name_space.salt.value_or("").size() + names.name_space.extra_key.value_or("").size();
  for (const MediaKey& media : names.media) id_bytes += media.id.size();
  constexpr std::size_t other_names = 2;
  reserve_amortised(scratch, other_names + names.media.size());
  hasher.reserve_keys(scratch.capacity(), id_bytes);
}

}  // namespace stateport::detail
