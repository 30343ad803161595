// SPDX-License-Identifier: Apache-2.0
#include "serve/epoch_names.hpp"

#include "hash/random_bits.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace stateport::detail {
namespace {

/// 30 bytes, and so a key without a digest.
NameKey epoch_key(std::uint64_t epoch, const std::array<std::uint64_t, 2>& records) {
  constexpr std::string_view prefix = "stateport\n";
  std::array<char, prefix.size() + 20> name = {};
  std::ranges::copy(prefix, name.begin());
  for (unsigned i = 0; i < 8; ++i) name[prefix.size() + i] = static_cast<char>(epoch >> (8 * i));
  for (unsigned i = 0; i < 8; ++i) name[prefix.size() + 8 + i] = static_cast<char>(records[0] >> (8 * i));
  for (unsigned i = 0; i < 4; ++i) name[prefix.size() + 16 + i] = static_cast<char>(records[1] >> (8 * i));
  return std::string_view(name.data(), name.size());
}

ForgetBy names_compared(const Forgotten& forgotten) noexcept {
  if (forgotten.extra_key) return forgotten.salt ? ForgetBy::name_space : ForgetBy::extra_key;
  return forgotten.salt ? ForgetBy::salt : ForgetBy::all;
}

}  // namespace

EpochNames::EpochNames(std::uint64_t epoch) : epoch_(epoch), number_(random_bits()) {}

ForgetRecord EpochNames::record_of(const Forgotten& forgotten) noexcept {
  return {.cache = number_,
          .call = ++calls_,
          .extra_key = forgotten.tag.extra_key,
          .salt = forgotten.tag.salt,
          .by = names_compared(forgotten)};
}

bool EpochNames::forget(const Forgotten& forgotten) noexcept {
  if (records_.add(record_of(forgotten)) != ForgetRecords::Added::full) return true;
  be_alone();
  return false;
}

ForgetRecords::Added EpochNames::adopt(const ForgetRecord& record) noexcept {
  const ForgetRecords::Added added = records_.add(record);
  if (added == ForgetRecords::Added::full) be_alone();
  return added;
}

/// One record of this cache, which holds for all namespaces, stands for all that there were.
void EpochNames::be_alone() noexcept {
  is_alone_ = true;
  records_.clear();
  records_.add(record_of({}));
}

Namespace EpochNames::current(const Namespace& name_space) const {
  if (epoch_ == 0 && records_.all().empty()) return name_space;
  const NamespaceTag tag = NamespaceTag::of(name_space);
  std::array<std::uint64_t, 2> hash = {};  // of a set: the same for any order
  for (const ForgetRecord& record : records_.all()) {
    if (!namespaces_of(record)(tag)) continue;
    const std::array<std::uint64_t, 2> more = hash_of(record);
    for (std::size_t i = 0; i < hash.size(); ++i) hash[i] ^= more[i];
  }
  if (epoch_ == 0 && hash == std::array<std::uint64_t, 2>{}) return name_space;
  Namespace result = name_space;
  const NameKey key = epoch_key(epoch_, hash);
  // Of both: no adapter has such a name. One without a name differs from none.
  result.extra_key = result.extra_key ? NameKey::both(*result.extra_key, key) : NameKey::both(key, {});
  return result;
}

}  // namespace stateport::detail
