// SPDX-License-Identifier: Apache-2.0
#include "serve/epoch_names.hpp"

#include "hash/random_bits.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace stateport::detail {
namespace {

/// 30 bytes, and so a key without a digest.
NameKey epoch_key(std::uint64_t epoch, std::uint32_t call, std::uint64_t nonce) {
  constexpr std::string_view prefix = "stateport\n";
  std::array<char, prefix.size() + 20> name = {};
  std::ranges::copy(prefix, name.begin());
  for (unsigned i = 0; i < 8; ++i) name[prefix.size() + i] = static_cast<char>(epoch >> (8 * i));
  for (unsigned i = 0; i < 4; ++i) name[prefix.size() + 8 + i] = static_cast<char>(call >> (8 * i));
  for (unsigned i = 0; i < 8; ++i) name[prefix.size() + 12 + i] = static_cast<char>(nonce >> (8 * i));
  return std::string_view(name.data(), name.size());
}

}  // namespace

EpochNames::EpochNames(std::uint64_t epoch) : epoch_(epoch), nonce_(random_bits()) {
  renamed_.reserve(renamed_max);
}

bool EpochNames::rename(const Forgotten& forgotten) noexcept {
  auto at = std::ranges::find(renamed_, forgotten, &Renamed::which);
  if (at == renamed_.end()) {
    if (renamed_.size() == renamed_max) {
      rename_all();
      return false;
    }
    at = renamed_.insert(at, {.which = forgotten});
  }
  at->call = ++calls_;
  return true;
}

void EpochNames::rename_all() noexcept {
  renamed_.assign(1, {.which = Forgotten{}, .call = ++calls_});
}

Namespace EpochNames::current(const Namespace& name_space) const {
  if (epoch_ == 0 && renamed_.empty()) return name_space;
  const NamespaceTag tag = NamespaceTag::of(name_space);
  std::uint32_t call = 0;
  for (const Renamed& renamed : renamed_)
    if (renamed.which(tag)) call = std::max(call, renamed.call);
  if (epoch_ == 0 && call == 0) return name_space;
  Namespace result = name_space;
  const NameKey key = epoch_key(epoch_, call, call == 0 ? 0 : nonce_);
  // Of both: no adapter has such a name. One without a name differs from none.
  result.extra_key = result.extra_key ? NameKey::both(*result.extra_key, key) : NameKey::both(key, {});
  return result;
}

}  // namespace stateport::detail
