// SPDX-License-Identifier: Apache-2.0
#include "serve/state_blocks.hpp"

#include <algorithm>
#include <utility>

namespace stateport::detail {

StateBlocks::StateBlocks(const StateGroup& group, std::int32_t index, CacheNews& news,
                         std::shared_ptr<EvictionPolicy> eviction, TenantOwners* owners, SessionBook* sessions,
                         StateChecks* checks)
    : block_size_(group.block_size_tokens),
      group_(index),
      owners_(owners),
      sessions_(sessions),
      checks_(checks),
      pool_({.blocks = group.blocks + reserved_state_blocks, .eviction = std::move(eviction), .owners = owners}),
      publication_(group.blocks + reserved_state_blocks),
      news_(news),
      prefix_of_(static_cast<std::size_t>(group.blocks + reserved_state_blocks)),
      tags_(std::make_unique_for_overwrite<NamespaceTag[]>(prefix_of_.size())),
      found_(prefix_of_.size(), 0) {
  take_null_block();
  pool_.add_listener(*this);
}

StateBlocks::~StateBlocks() {
  pool_.remove_listener(*this);
}

void StateBlocks::take_null_block() {
  all_.resize(static_cast<std::size_t>(pool_.free_blocks()));
  static_cast<void>(pool_.allocate(all_));
  std::erase(all_, BlockId{null_block});
  pool_.release(all_);
}

BlockId StateBlocks::find(BlockHash key, const PrefixHash& prefix, std::int64_t tokens) const {
  const BlockId block = pool_.find(key);
  const bool same = block.valid() && prefix_of_[block.index()] == prefix && publication_.tokens(block) == tokens;
  return same ? block : BlockId{};
}

bool StateBlocks::evict_demoted() {
  if (sessions_ == nullptr) return false;
  const std::int32_t number =
      sessions_->next(MemoryPart::states, static_cast<std::size_t>(group_), [&](std::int32_t candidate) {
        const BlockId block{candidate};
        if (candidate >= pool_.block_count() || pool_.ref_count(block) > 0 || pool_.hash(block) <= 0) return false;
        return owners_ == nullptr ||
               owners_->ledger().turn(owners_->of(block.index()), owners_->bytes_each()) != TenantLedger::Turn::never;
      });
  if (number < 0) return false;
  const BlockId block{number};
  pool_.forget({&block, 1});
  return true;
}

bool StateBlocks::take(std::span<BlockId> blocks) {
  while (sessions_ != nullptr && pool_.free_blocks() < std::ssize(blocks) && evict_demoted()) {
  }
  // Where tenants have shares one after the other is evicted, so that accounts are up to date.
  while (owners_ != nullptr && pool_.free_blocks() < std::ssize(blocks))
    if (available() < std::ssize(blocks) || !evict_one()) return false;
  if (!pool_.allocate(blocks)) return false;
  for (const BlockId block : blocks) {
    publication_.forget(block);
    if (owners_ != nullptr) owners_->take(block.index());
  }
  return true;
}

void StateBlocks::release(std::span<const BlockId> blocks) {
  pool_.advance_tick();
  pool_.release(blocks);
}

bool StateBlocks::publish(BlockId block, BlockHash key, const PrefixHash& prefix, std::int64_t tokens,
                          const NamespaceTag& tag) {
  if (pool_.hash(block) > 0 || !publication_.publish(block, tokens)) return false;
  if (const BlockId before = pool_.find(key); before.valid()) {
    if (prefix_of_[before.index()] == prefix) {
      pool_.set_last_use({&before, 1}, pool_.tick());
      return false;
    }
    lose(before);  // another prefix with the same key: the hash finds the new block from now on
  }
  found_[block.index()] = 1;
  prefix_of_[block.index()] = prefix;
  tags_[block.index()] = tag;
  pool_.register_hashes({&block, 1}, {&key, 1});
  news_.state_stored(group_, prefix, tokens, SlotId{block.value()});
  return true;
}

void StateBlocks::forget(const Forgotten& forgotten) {
  all_.clear();
  for (std::int32_t i = 0; i < pool_.block_count(); ++i)
    if (pool_.hash(BlockId{i}) > 0 && forgotten(tags_[static_cast<std::size_t>(i)])) all_.push_back(BlockId{i});
  for (const BlockId block : all_) lose(block);
  const std::int64_t evictions = evictions_;  // these are forgotten, not evicted
  pool_.forget(all_);
  evictions_ = evictions;
}

void StateBlocks::withdraw(BlockId block) {
  lose(block);
  const std::int64_t evictions = evictions_;
  pool_.forget({&block, 1});
  evictions_ = evictions;
}

void StateBlocks::on_blocks_deregistered(std::span<const BlockId> blocks, std::span<const BlockHash> hashes) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (owners_ != nullptr) owners_->give(blocks[i].index());
    if (hashes[i] <= 0) continue;
    ++evictions_;
    lose(blocks[i]);
  }
}

void StateBlocks::lose(BlockId block) {
  if (std::exchange(found_[block.index()], std::uint8_t{0}) == 0) return;
  if (sessions_ != nullptr) sessions_->give_state(static_cast<std::size_t>(group_), SlotId{block.value()});
  if (checks_ != nullptr) checks_->lost(static_cast<std::size_t>(group_), SlotId{block.value()});
  news_.state_removed(group_, prefix_of_[block.index()]);
}

void StateBlocks::reset() {
  pool_.remove_listener(*this);
  pool_.reset();
  std::ranges::fill(found_, std::uint8_t{0});
  take_null_block();
  pool_.add_listener(*this);
}

}  // namespace stateport::detail
