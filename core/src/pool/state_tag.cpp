// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/pool/state_tag.hpp>

namespace stateport {

std::string_view name(TagCheck check) noexcept {
  switch (check) {
    case TagCheck::match:
      return "match";
    case TagCheck::empty:
      return "empty slot";
    case TagCheck::token_count:
      return "another token count";
    case TagCheck::prefix:
      return "another prefix";
    case TagCheck::layout:
      return "another layout";
  }
  return "?";
}

}  // namespace stateport
