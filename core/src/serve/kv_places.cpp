// SPDX-License-Identifier: Apache-2.0
#include "serve/kv_places.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <utility>

namespace stateport::detail {
namespace {

constexpr std::int32_t nowhere = -1;

}  // namespace

KvPlaces::KvPlaces(std::int32_t blocks, bool arena) {
  if (!arena) return;
  pool_.emplace(blocks - 1, 1);
  number_of_.resize(static_cast<std::size_t>(blocks), nowhere);
  block_at_.resize(number_of_.size());
}

void KvPlaces::take(std::span<const BlockId> fresh) {
  for (std::size_t i = 0; pool_ && i < fresh.size(); ++i) {
    KvIndex& number = number_of_[fresh[i].index()];
    const bool found = pool_->allocate({&number, 1});
    require_invariant(found, "KvPlaces", "a block finds no memory");
    block_at_[static_cast<std::size_t>(number)] = fresh[i];
  }
}

void KvPlaces::give_back(std::span<const BlockId> blocks) {
  for (std::size_t i = 0; pool_ && i < blocks.size(); ++i) {
    const std::int32_t number = std::exchange(number_of_[blocks[i].index()], nowhere);
    block_at_[static_cast<std::size_t>(number)] = {};
    pool_->release({&number, 1});
  }
}

void KvPlaces::reset() noexcept {
  if (!pool_) return;
  pool_->reset();
  std::ranges::fill(number_of_, nowhere);
  std::ranges::fill(block_at_, BlockId{});
}

std::int32_t KvPlaces::move(std::int32_t number) {
  const BlockId block = std::exchange(block_at_[static_cast<std::size_t>(number)], {});
  take({&block, 1});
  pool_->release({&number, 1});
  return number_of_[block.index()];
}

}  // namespace stateport::detail
