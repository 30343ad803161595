// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/name_key.hpp>

#include <cstddef>
#include <cstdint>

namespace stateport::detail {

/// Short names of a namespace, by which contents know whose they are: 32 bits of each name, 0 for none. Two names that
/// share a tag are forgotten together, which costs hits alone.
struct NamespaceTag {
  std::uint32_t extra_key;
  std::uint32_t salt;

  [[nodiscard]] static NamespaceTag of(const Namespace& name_space) noexcept;
  /// For a table of as many buckets, in which two namespaces may share one.
  [[nodiscard]] constexpr std::size_t bucket(std::size_t buckets) const noexcept {
    return static_cast<std::size_t>((std::uint64_t{extra_key} * 31 + salt) % buckets);
  }
  friend constexpr bool operator==(const NamespaceTag&, const NamespaceTag&) noexcept = default;
};

/// The namespaces whose contents are forgotten.
struct Forgotten {
  NamespaceTag tag{};
  bool extra_key = false;  ///< it is compared; neither: all namespaces
  bool salt = false;

  [[nodiscard]] bool operator()(const NamespaceTag& other) const noexcept {
    return (!extra_key || tag.extra_key == other.extra_key) && (!salt || tag.salt == other.salt);
  }
  friend constexpr bool operator==(const Forgotten&, const Forgotten&) noexcept = default;
};

}  // namespace stateport::detail
