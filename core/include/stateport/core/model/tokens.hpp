// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace stateport {

using Token = std::int32_t;    ///< a token id; any value
using KvIndex = std::int32_t;  ///< where the KV of one token lives; >= 0

/// Keys of different namespaces never share a node. An empty string is a name, std::nullopt is none.
struct Namespace {
  std::optional<std::string_view> extra_key;  ///< for example the adapter
  std::optional<std::string_view> salt;       ///< for example the tenant
  friend constexpr bool operator==(const Namespace&, const Namespace&) noexcept = default;
};

}  // namespace stateport
