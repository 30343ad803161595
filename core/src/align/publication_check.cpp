// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/align/publication_check.hpp>

#include <stateport/core/model/error.hpp>

namespace stateport {

PublicationCheck::PublicationCheck(std::int32_t blocks) {
  require(blocks >= 1, "blocks", blocks, "must be at least 1 (the null block)");
  held_.resize(static_cast<std::size_t>(blocks));
}

void PublicationCheck::forget(BlockId block) {
  at(block) = {};
}

bool PublicationCheck::publish(BlockId block, std::int64_t tokens) {
  require(block.value() > null_block, "block", block, "is not a block that can hold a state");
  const Held& held = at(block);
  const bool holds = holds_state(held.conv, held.recurrent, tokens);
  ++(holds ? published_ : refused_);
  return holds;
}

std::int64_t PublicationCheck::tokens(BlockId block) const {
  const Held& held = at(block);
  return held.conv == held.recurrent ? held.conv : unknown;
}

}  // namespace stateport
