// SPDX-License-Identifier: Apache-2.0
// AlignContext's knowledge of the blocks of a group.
#include "align_context_impl.hpp"

namespace stateport {

void AlignContext::gather_held(const Stream& stream, std::int32_t group, const std::int32_t* blocks, std::int32_t count,
                               std::int32_t* conv, std::int32_t* recurrent) {
  const kernels::AlignGroupView& view = impl_->view(group);
  require(count >= 0, "count", count, "must not be negative");
  require(count == 0 || blocks != nullptr, "blocks", "nullptr", "must point to count entries");
  require(count == 0 || (conv != nullptr && recurrent != nullptr), "conv", "nullptr",
          "conv and recurrent must point to count entries");
  kernels::align_gather_held(stream, view, blocks, count, conv, recurrent);
}

void AlignContext::verify_blocks(const Stream& stream, std::int32_t group, const std::int32_t* blocks,
                                 const std::int32_t* tokens, std::int32_t count, std::uint8_t* holds) {
  const kernels::AlignGroupView& view = impl_->view(group);
  require(count >= 0, "count", count, "must not be negative");
  require(count == 0 || (blocks != nullptr && tokens != nullptr && holds != nullptr), "blocks", "nullptr",
          "blocks, tokens and holds must point to count entries");
  kernels::align_verify_blocks(stream, view, blocks, tokens, count, holds);
}

void AlignContext::wrote_blocks(const Stream& stream, std::int32_t group, const std::int32_t* blocks,
                                const std::int32_t* tokens, std::int32_t count) {
  const kernels::AlignGroupView& view = impl_->view(group);
  require(count >= 0, "count", count, "must not be negative");
  require(count == 0 || (blocks != nullptr && tokens != nullptr), "blocks", "nullptr",
          "blocks and tokens must point to count entries");
  kernels::align_wrote_blocks(stream, view, blocks, tokens, count);
}

void AlignContext::forget_blocks(const Stream& stream, std::int32_t group, std::span<const BlockId> blocks) {
  const kernels::AlignGroupView& view = impl_->view(group);
  for (const BlockId block : blocks)
    require(block.valid() && block.value() < view.blocks, "block", block, "is not a block of the group");
  kernels::align_forget_blocks(stream, view, blocks);
}

}  // namespace stateport
