// SPDX-License-Identifier: Apache-2.0
#include "allocator_blocks.hpp"

#include <stateport/core/model/error.hpp>

namespace stateport::c {

AllocatorBlocks::AllocatorBlocks(Owner owner, const BlockPoolOptions& options) {
  if (owner == Owner::allocator)
    own_.emplace(options);
  else
    engines_.emplace(options.blocks);
}

BlockDirectory& AllocatorBlocks::directory() noexcept {
  if (own_) return *own_;
  return *engines_;
}

BlockPool& AllocatorBlocks::own() {
  require(own_.has_value(), "allocator", "over external blocks", "the engine hands its blocks out itself");
  return *own_;
}

ExternalBlockPool& AllocatorBlocks::engines() {
  require(engines_.has_value(), "allocator", "over blocks of its own", "it evicts them itself");
  return *engines_;
}

void AllocatorBlocks::retain(std::span<const BlockId> blocks) {
  if (own_)
    own_->retain(blocks);
  else
    engines_->reference(blocks);
}

void AllocatorBlocks::release(std::span<const BlockId> blocks) {
  if (own_)
    own_->release(blocks);
  else
    engines_->unreference(blocks);
}

void AllocatorBlocks::register_hashes(std::span<const BlockId> blocks, std::span<const BlockHash> hashes,
                                      std::span<const BlockHash> parents) {
  if (own_)
    own_->register_hashes(blocks, hashes, parents);
  else
    engines_->register_hashes(blocks, hashes, parents);
}

void AllocatorBlocks::advance_tick() noexcept {
  if (own_)
    own_->advance_tick();
  else
    engines_->advance_tick();
}

void AllocatorBlocks::check_invariants() const {
  if (own_)
    own_->check_invariants();
  else
    engines_->check_invariants();
}

}  // namespace stateport::c
