// SPDX-License-Identifier: Apache-2.0
// A tree that knows its KV indices, with no more room for tokens than those need: runs of free pages are often too
// short for a prefix, which then lies in several nodes.
#include <stateport/core/hash/block_hasher.hpp>
#include <stateport/core/tree/prefix_tree.hpp>

#include "heap_counter.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

using namespace stateport;
using stateport::test::Random;

namespace {

using Tokens = std::vector<Token>;

/// An owner of KV indices that remembers the tokens of each index.
class Owner {
 public:
  Owner(Random& random, std::int32_t page)
      : random_(random),
        page_(page),
        indices_(page * random.between32(10, 40)),
        tree_({.page_size = page,
               .slots = 4,
               .eviction = EvictionOrder::lru,
               .kv_indices = indices_,
               .reserve_tokens = static_cast<std::size_t>(indices_),
               .on_kv_event = [this](const KvEvent& event) { follow(event); }}),
        hasher_({.block_size_tokens = page}) {
    for (KvIndex index = 0; index < indices_; ++index) free_.push_back(index);
    freed_.kv.reserve(static_cast<std::size_t>(indices_));
    freed_.slots.reserve(4);
  }

  void serve() {
    const Tokens prompt = random_prompt();
    std::vector<KvIndex> kv(prompt.size());
    const PrefixMatch hit = tree_.match(prompt, {}, kv);
    check_kv(prompt, std::span(kv).first(static_cast<std::size_t>(hit.tokens)));
    const PrefixLock lock = tree_.lock(hit.node);
    if (!take(std::span(kv).subspan(static_cast<std::size_t>(hit.tokens)))) return;
    for (std::size_t i = static_cast<std::size_t>(hit.tokens); i < kv.size(); ++i)
      content_[kv[i]] = Tokens(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    SlotId slot;
    if (!tree_.allocate_slots({&slot, 1})) {
      evict({.states = 1});
      REQUIRE(tree_.allocate_slots({&slot, 1}));
    }
    const std::size_t whole = prompt.size() / static_cast<std::size_t>(page_) * static_cast<std::size_t>(page_);
    tree_.tag_slot(slot, tree_.state_tag(std::span(prompt).first(whole)));
    const std::size_t nodes = tree_.node_count();
    const InsertResult inserted =
        tree_.insert({.tokens = prompt, .kv = kv, .slot = slot, .prev_tokens = hit.tokens}, freed_);
    pieces += tree_.node_count() > nodes + 2;  // a split makes one, and a prefix in one piece the other
    if (inserted.state_exists) tree_.release_slots({&slot, 1});
    give_back();
    for (std::size_t i = whole; i < kv.size(); ++i) free_.push_back(kv[i]);
    old_.push_back(prompt);
    check_whole(std::span(prompt).first(whole));
  }

  std::int64_t pieces = 0;  ///< inserts that made several nodes

 private:
  Tokens random_prompt() {
    Tokens prompt;
    if (!old_.empty() && random_.chance(60)) {
      prompt = old_[static_cast<std::size_t>(random_.between(0, std::ssize(old_) - 1))];
      prompt.resize(static_cast<std::size_t>(random_.between(0, std::ssize(prompt))));
    }
    const std::int64_t most = indices_ / 2;
    for (std::int64_t own = random_.between(page_, most); own > 0; --own) prompt.push_back(random_.between32(0, 2));
    if (std::ssize(prompt) > most) prompt.resize(static_cast<std::size_t>(most));
    return prompt;
  }
  void evict(EvictDemand demand) {
    tree_.evict(demand, freed_);
    give_back();
  }
  void give_back() {
    free_.insert(free_.end(), freed_.kv.begin(), freed_.kv.end());
    freed_.clear();
  }
  bool take(std::span<KvIndex> out) {
    if (free_.size() < out.size()) evict({.tokens = std::ssize(out)});
    if (free_.size() < out.size()) return false;
    for (KvIndex& index : out) {
      index = free_.back();
      free_.pop_back();
    }
    return true;
  }
  void check_kv(const Tokens& prompt, std::span<const KvIndex> kv) const {
    for (std::size_t i = 0; i < kv.size(); ++i)
      REQUIRE(content_.at(kv[i]) == Tokens(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(i) + 1));
  }
  /// Right after an insert the whole prefix is found, and events have named each of its pages.
  void check_whole(std::span<const Token> prefix) {
    const PrefixMatch found = tree_.peek(prefix);
    REQUIRE(found.walked_tokens == std::ssize(prefix));
    REQUIRE(found.tokens == std::ssize(prefix));
    PromptHashes hashes;
    hasher_.hash_prompt(prefix, {}, hashes);
    for (const PrefixHash& page : hashes.prefixes) REQUIRE(told_.contains(page.words));
    REQUIRE(std::cmp_equal(told_.size(), tree_.sizes().total_tokens() / page_));
    tree_.check_invariants();
  }
  void follow(const KvEvent& event) {
    const test::SparedAllocations spared;
    if (event.kind == KvEvent::Kind::stored) {
      REQUIRE(event.tokens.size() == event.blocks.size() * static_cast<std::size_t>(page_));
      REQUIRE((event.parent == BlockDigest{} || told_.contains(event.parent.prefix().words)));
      BlockDigest before = event.parent;
      for (std::size_t i = 0; i < event.blocks.size(); ++i) {
        before = hasher_.hash_block(
            before, event.tokens.subspan(i * static_cast<std::size_t>(page_), static_cast<std::size_t>(page_)));
        REQUIRE(before == event.blocks[i]);
        REQUIRE(told_.insert(before.prefix().words).second);
      }
    }
    if (event.kind == KvEvent::Kind::removed)
      for (const BlockDigest& block : event.blocks) REQUIRE(told_.erase(block.prefix().words) == 1);
  }

  Random& random_;
  std::int32_t page_;
  std::int32_t indices_;
  PrefixTree tree_;
  BlockHasher hasher_;
  std::vector<KvIndex> free_;
  std::map<KvIndex, Tokens> content_;
  std::set<std::array<std::uint64_t, 2>> told_;
  std::vector<Tokens> old_;
  Freed freed_;
};

}  // namespace

TEST_CASE("a prefix that finds no room in one piece is kept in several nodes, whole and with all events") {
  std::int64_t pieces = 0;
  std::uint64_t seeds = 0;
  test::for_each_seed(200, [&](Random& random, std::uint64_t) {
    Owner owner(random, random.between32(1, 3));
    for (int step = 0; step < 100; ++step) owner.serve();
    pieces += owner.pieces;
    ++seeds;
  });
  if (seeds >= 50) CHECK(pieces > 5);
}
