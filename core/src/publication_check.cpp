// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/publication_check.hpp>

#include <stateport/core/error.hpp>

namespace stateport {

PublicationCheck::PublicationCheck(std::int32_t blocks) {
  require(blocks >= 1, "blocks", blocks, "must be at least 1 (the null block)");
  held_.resize(static_cast<std::size_t>(blocks));
}

void PublicationCheck::wrote_conv(std::int32_t block, std::int64_t tokens) {
  if (block > null_block) at(block).conv = tokens;
}

void PublicationCheck::wrote_recurrent(std::int32_t block, std::int64_t tokens) {
  if (block > null_block) at(block).recurrent = tokens;
}

void PublicationCheck::copied(const SlotCopy& copy) {
  if (copy.dst_slot <= null_block) return;
  // Both sources are read before the destination is written: it may be one of them.
  Held result = at(copy.dst_slot);
  if (copy.src_slot > null_block) {
    const std::int64_t conv = at(copy.src_slot).conv;
    result.conv = conv == unknown ? unknown : conv + copy.conv_shift;
  }
  if (copy.recurrent_src_slot > null_block) result.recurrent = at(copy.recurrent_src_slot).recurrent;
  at(copy.dst_slot) = result;
}

void PublicationCheck::forget(BlockId block) {
  at(block.value()) = {};
}

bool PublicationCheck::publish(BlockId block, std::int64_t tokens) {
  require(block.value() > null_block, "block", block, "is not a block that can hold a state");
  const Held& held = at(block.value());
  const bool holds = tokens > 0 && held.conv == tokens && held.recurrent == tokens;
  ++(holds ? published_ : refused_);
  return holds;
}

std::int64_t PublicationCheck::tokens(BlockId block) const {
  const Held& held = at(block.value());
  return held.conv == held.recurrent ? held.conv : unknown;
}

const PublicationCheck::Held& PublicationCheck::at(std::int32_t block) const {
  require(block >= 0 && block < blocks(), "block", block, "is not a block of the group");
  return held_[static_cast<std::size_t>(block)];
}

PublicationCheck::Held& PublicationCheck::at(std::int32_t block) {
  return const_cast<Held&>(static_cast<const PublicationCheck&>(*this).at(block));
}

}  // namespace stateport
