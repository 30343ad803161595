// SPDX-License-Identifier: Apache-2.0
#include "workload/prompt_blocks.hpp"

namespace stateport::replay {

void PromptBlocks::read(std::span<const BlockIdentity> identities) {
  blocks_.clear();
  keys_.clear();
  Content content = empty_content;
  Block before = none;
  for (const BlockIdentity identity : identities) {
    content = append_block(content, identity);
    const auto [found, is_new] = numbers_.try_emplace(content, static_cast<Block>(parents_.size()));
    if (is_new) parents_.push_back(before);
    before = found->second;
    blocks_.push_back(before);
    keys_.push_back(content);
  }
}

}  // namespace stateport::replay
