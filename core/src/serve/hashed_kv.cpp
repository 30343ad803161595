// SPDX-License-Identifier: Apache-2.0
#include "serve/hashed_kv.hpp"

#include <stateport/core/model/error.hpp>

#include "serve/request_options.hpp"

#include <algorithm>
#include <utility>

namespace stateport::detail {

HashedKv::HashedKv(RequestBook& book)
    : block_size_(book.options.block_size_tokens),
      hasher_(book.options),
      pool_({.blocks = kv_blocks(book.options), .owners = book.kv_owners()}),
      places_(pool_.block_count(), book.slots.arena.bytes > 0),
      book_(book),
      owners_(book.kv_owners()),
      prefix_of_(static_cast<std::size_t>(pool_.block_count())),
      found_(prefix_of_.size(), 0),
      had_state_(prefix_of_.size(), 0),
      tags_(std::make_unique_for_overwrite<NamespaceTag[]>(prefix_of_.size())),
      rows_(index_rows(book.options)) {
  const std::size_t most = request_blocks(book.options);
  for (Row& row : rows_) {
    row.hashes = GrowingHashes(most);
    row.blocks.reserve(most);
    row.ids.reserve(most);
  }
  matched_.reserve(most);
  parents_.reserve(most);
  forgotten_.reserve(prefix_of_.size());
  pool_.add_listener(*this);
}

HashedKv::~HashedKv() {
  pool_.remove_listener(*this);
}

void HashedKv::hash(RequestId request, std::span<const Token> tokens, const PromptNames& names) {
  Row& row = rows_[request.index()];
  row.hashes.clear();
  row.hashes.extend(hasher_, tokens, names);
}

std::span<const BlockId> HashedKv::match(RequestId request) {
  const Row& row = rows_[request.index()];
  matched_.resize(row.hashes.size());
  const std::size_t found = pool_.find_prefix(row.hashes.keys(), matched_);
  std::size_t same = 0;
  while (same < found && prefix_of_[matched_[same].index()] == row.hashes.prefixes()[same]) ++same;
  return std::span(matched_).first(same);
}

void HashedKv::begin(RequestId request, std::span<const BlockId> blocks) {
  Row& row = rows_[request.index()];
  pool_.advance_tick();
  pool_.retain(blocks);
  pool_.release(row.blocks);
  row.blocks.assign(blocks.begin(), blocks.end());
  row.ids.clear();
  for (const BlockId block : blocks) {
    row.ids.push_back(places_.of(block));
    book_.note_shared(request, block.value());
  }
  row.registered = blocks.size();
}

void HashedKv::fork(RequestId fork, RequestId point, std::int64_t tokens) {
  const Row& from = rows_[point.index()];
  Row& to = rows_[fork.index()];
  to.hashes = from.hashes;
  const auto whole = static_cast<std::ptrdiff_t>(tokens / block_size_);
  to.blocks.assign(from.blocks.begin(), from.blocks.begin() + whole);
  to.ids.assign(from.ids.begin(), from.ids.begin() + whole);
  to.registered = from.registered;
  pool_.retain(to.blocks);
}

BlockId HashedKv::findable(RequestId request, std::size_t i) const {
  const GrowingHashes& hashes = rows_[request.index()].hashes;
  const BlockId found = pool_.find(hashes.keys()[i]);
  return found.valid() && prefix_of_[found.index()] == hashes.prefixes()[i] ? found : BlockId{};
}

bool HashedKv::finds_all(RequestId request, std::int64_t tokens) const {
  auto block = static_cast<std::size_t>(tokens / block_size_);
  while (block > 0 && findable(request, block - 1).valid()) --block;
  return block == 0;
}

std::size_t HashedKv::cached_blocks(RequestId request) const {
  const Row& row = rows_[request.index()];
  std::size_t blocks = row.blocks.size();
  while (blocks < row.hashes.size() && findable(request, blocks).valid()) ++blocks;
  return blocks;
}

void HashedKv::hold_cached(RequestId request, std::size_t blocks) {
  Row& row = rows_[request.index()];
  for (std::size_t i = row.blocks.size(); i < blocks; ++i) {
    const BlockId block = findable(request, i);
    pool_.retain({&block, 1});
    row.blocks.push_back(block);
    row.ids.push_back(places_.of(block));
    book_.note_shared(request, block.value());
    row.registered = i + 1;
  }
}

bool HashedKv::reserve(RequestId request, std::int64_t upto) {
  Row& row = rows_[request.index()];
  const std::size_t held = row.blocks.size();
  if (upto <= static_cast<std::int64_t>(held) * block_size_) return true;
  const auto needed = static_cast<std::size_t>((upto + block_size_ - 1) / block_size_);
  row.blocks.resize(needed);
  const auto fresh = std::span(row.blocks).subspan(held);
  while (book_.sessions && pool_.free_blocks() < std::ssize(fresh) && evict_demoted()) {
  }
  if (!find_places(std::ssize(fresh)) || !find_share(std::ssize(fresh)) || !pool_.allocate(fresh)) {
    row.blocks.resize(held);
    return false;
  }
  places_.take(fresh);
  book_.note_need(MemoryPart::kv, std::ssize(fresh));
  if (owners_ != nullptr)
    for (const BlockId block : fresh) owners_->take(block.index());
  for (const BlockId block : fresh)
    if (book_.sessions) book_.sessions->take_kv(block.value());
  for (const BlockId block : fresh) row.ids.push_back(places_.of(block));
  return true;
}

/// In an arena: makes room for these blocks. Whatever is worth the least is evicted, not the KV that was used longest
/// ago, because memory follows. Nothing is evicted if that cannot be enough: then memory has to come from the states
/// first.
bool HashedKv::find_places(std::int64_t blocks) {
  if (!places_.in_arena()) return true;
  book_.note_lack(MemoryPart::kv, blocks - places_.numbers().available());
  if (places_.numbers().available() + pool_.cached_blocks() < blocks) return false;
  while (places_.numbers().available() < blocks)
    if (!book_.elastic->evict_least()) return false;
  return true;
}

/// Where tenants have shares: makes room for these blocks, one after the other, so that accounts are up to date.
/// Nothing is evicted if that cannot be enough.
bool HashedKv::find_share(std::int64_t blocks) {
  if (owners_ == nullptr) return true;
  const std::int64_t takeable = owners_->ledger().takeable_bytes() / owners_->bytes_each();
  if (pool_.free_blocks() + std::min<std::int64_t>(pool_.cached_blocks(), takeable) < blocks) return false;
  while (pool_.free_blocks() < blocks)
    if (!pool_.evict(1)) return false;
  return true;
}

void HashedKv::register_full(RequestId request, std::span<const Token> tokens, const PromptNames& names) {
  Row& row = rows_[request.index()];
  const std::size_t full = tokens.size() / static_cast<std::size_t>(block_size_);
  if (full <= row.registered || book_.record(request).stale) return;
  row.hashes.extend(hasher_, tokens, names);
  const std::size_t first = row.registered;
  const auto keys = row.hashes.keys().subspan(first, full - first);
  parents_.clear();
  for (std::size_t i = first; i < full; ++i) {
    parents_.push_back(i == 0 ? root_hash : row.hashes.keys()[i - 1]);
    const PrefixHash& prefix = row.hashes.prefixes()[i];
    if (const BlockId before = pool_.find(row.hashes.keys()[i]); before.valid()) {
      if (prefix_of_[before.index()] == prefix) {
        read_from(request, i, before);
        continue;
      }
      lose(before);  // another prefix with the same key: the hash finds the new block from now on
    }
    const BlockId block = row.blocks[i];
    had_state_[block.index()] = 0;
    found_[block.index()] = 1;
    prefix_of_[block.index()] = prefix;
    tags_[block.index()] = book_.record(request).tag;
    book_.news.kv_stored(prefix, i == 0 ? PrefixHash{} : row.hashes.prefixes()[i - 1],
                         static_cast<std::int64_t>(i + 1) * block_size_, places_.of(block), tags_[block.index()]);
  }
  pool_.register_hashes(std::span(row.blocks).subspan(first, full - first), keys, parents_);
  row.registered = full;
}

/// The request reads the KV of its i-th block from `block`, which holds the same, and gives its own block back.
void HashedKv::read_from(RequestId request, std::size_t i, BlockId block) {
  Row& row = rows_[request.index()];
  book_.note_shared(request, block.value());
  pool_.retain({&block, 1});
  pool_.release({&row.blocks[i], 1});
  row.blocks[i] = block;
  row.ids[i] = places_.of(block);
}

void HashedKv::note_state(RequestId request, std::size_t block) {
  const BlockId found = pool_.find(rows_[request.index()].hashes.keys()[block]);
  if (found.valid()) had_state_[found.index()] = 1;
}

void HashedKv::end(RequestId request) {
  Row& row = rows_[request.index()];
  pool_.advance_tick();
  pool_.release(row.blocks);
  row.blocks.clear();
  row.ids.clear();
  row.registered = 0;
}

void HashedKv::reset() {
  pool_.remove_listener(*this);
  pool_.reset();
  places_.reset();
  std::ranges::fill(found_, std::uint8_t{0});
  std::ranges::fill(had_state_, std::uint8_t{0});
  pool_.add_listener(*this);
}

std::span<const BlockId> HashedKv::forget(const Forgotten& forgotten) {
  forgotten_.clear();
  for (std::int32_t i = 0; i < pool_.block_count(); ++i)
    if (pool_.hash(BlockId{i}) > 0 && forgotten(tags_[static_cast<std::size_t>(i)])) forgotten_.push_back(BlockId{i});
  for (const BlockId block : forgotten_) lose(block);
  pool_.forget(forgotten_);
  std::erase_if(forgotten_, [&](BlockId block) { return pool_.is_free(block); });
  return forgotten_;
}

void HashedKv::on_blocks_deregistered(std::span<const BlockId> blocks, std::span<const BlockHash> hashes) {
  for (const BlockId block : blocks) lose(block);
  places_.give_back(blocks);
  if (!book_.forgetting) evicted_blocks_ += std::ranges::count_if(hashes, [](BlockHash hash) { return hash > 0; });
  if (owners_ != nullptr)
    for (const BlockId block : blocks) owners_->give(block.index());
  for (const BlockId block : blocks)
    if (book_.sessions) book_.sessions->give_kv(block.value());
}

/// From the end of a prefix: a block with children stays. No block that a request used has tick 0.
bool HashedKv::evict_demoted() {
  if (!book_.sessions) return false;
  const std::int32_t number = book_.sessions->next(MemoryPart::kv, 0, [&](std::int32_t candidate) {
    const BlockId block{candidate};
    if (candidate >= pool_.block_count() || pool_.ref_count(block) > 0 || pool_.hash(block) <= 0) return false;
    return pool_.child_count(block) == 0 && (!book_.tenants || book_.tenants->is_takeable(candidate));
  });
  if (number < 0) return false;
  const BlockId block{number};
  pool_.set_last_use({&block, 1}, 0);
  const auto evict = [&] { return pool_.evict(1); };
  const bool gone = book_.tenants ? book_.tenants->trim(block, evict) : evict();
  require_invariant(gone && pool_.is_free(block), "HashedKv", "another block went than the demoted one");
  return true;
}

void HashedKv::lose(BlockId block) {
  had_state_[block.index()] = 0;
  if (std::exchange(found_[block.index()], std::uint8_t{0}) != 0) book_.news.kv_removed(prefix_of_[block.index()]);
}

}  // namespace stateport::detail
