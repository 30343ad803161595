// SPDX-License-Identifier: Apache-2.0
#include "serve/token_list.hpp"

#include <algorithm>

namespace stateport::detail {

void TokenList::grow(std::size_t more) {
  memory_.resize(std::max(size_ + more, 2 * memory_.size()));
}

}  // namespace stateport::detail
