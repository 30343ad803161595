// SPDX-License-Identifier: Apache-2.0
#include "hash/namespace_tag.hpp"

#include <xxhash.h>

#include <optional>
#include <string_view>

namespace stateport::detail {
namespace {

std::uint32_t tag_of(const std::optional<NameKey>& name) noexcept {
  if (!name) return 0;
  const std::string_view text = name->text();
  const auto tag = static_cast<std::uint32_t>(XXH3_64bits_withSeed(text.data(), text.size(), name->length()));
  return tag == 0 ? 1 : tag;
}

}  // namespace

NamespaceTag NamespaceTag::of(const Namespace& name_space) noexcept {
  return {.extra_key = tag_of(name_space.extra_key), .salt = tag_of(name_space.salt)};
}

}  // namespace stateport::detail
