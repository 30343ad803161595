// SPDX-License-Identifier: Apache-2.0
// A prefix that C inserts again takes no memory.
#include <stateport/c/prefix_tree.h>

#include "heap_counter.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace {

void ok(stateport_status status) {
  REQUIRE_MESSAGE(status == STATEPORT_OK, std::string(stateport_last_error()));
}

/// A tree that has a prefix, and calls that insert the first `tokens` of it many times.
class Tree {
 public:
  Tree() : tokens_(4096), results_(copies) {
    std::iota(tokens_.begin(), tokens_.end(), 0);
    stateport_tree_options options = {};
    options.size = sizeof options;
    options.page_size = 16;
    options.slots = 2;
    ok(stateport_tree_create(&options, &tree_));
    REQUIRE(insert(1, tokens_.size(), 0) > 0);
  }
  ~Tree() { stateport_tree_destroy(tree_); }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  /// Returns how many allocations that took.
  std::uint64_t insert(std::size_t count, std::size_t tokens, std::int64_t prev_tokens) {
    const stateport_insert one = prefix(tokens, prev_tokens);
    const std::vector<stateport_insert> prefixes(count, one);
    results_.front().size = sizeof results_.front();
    std::size_t done = 0;
    const std::uint64_t before = stateport::test::heap_allocations();
    ok(stateport_tree_insert_many(tree_, prefixes.data(), count, results_.data(), &done));
    const std::uint64_t made = stateport::test::heap_allocations() - before;
    REQUIRE(done == count);
    ok(stateport_tree_check(tree_));
    return made;
  }
  /// Whether an insert with this `prev_tokens` is refused for it.
  bool refuses(std::int64_t prev_tokens) {
    const stateport_insert one = prefix(size(), prev_tokens);
    std::size_t done = 0;
    return stateport_tree_insert_many(tree_, &one, 1, results_.data(), &done) == STATEPORT_INVALID_ARGUMENT &&
           std::string(stateport_last_error()).find("prev_tokens") != std::string::npos && done == 0;
  }
  std::size_t size() const { return tokens_.size(); }

  static constexpr std::size_t copies = 100;

 private:
  stateport_insert prefix(std::size_t tokens, std::int64_t prev_tokens) const {
    stateport_insert insert = {};
    insert.size = sizeof insert;
    insert.tokens = insert.kv = tokens_.data();
    insert.count = tokens;
    insert.slot = STATEPORT_NONE;
    insert.prev_tokens = prev_tokens;
    return insert;
  }

  std::vector<std::int32_t> tokens_;
  std::vector<stateport_insert_result> results_;
  stateport_tree* tree_ = nullptr;
};

}  // namespace

TEST_CASE("prefixes that a tree has take no room when they are inserted again") {
  Tree tree;
  const auto known = static_cast<std::int64_t>(tree.size());
  const std::uint64_t first = tree.insert(Tree::copies, 16, 16);  // makes room for this number of nodes
  const std::uint64_t of_call = tree.insert(Tree::copies, 16, 16);
  CHECK(of_call <= first);
  CHECK(tree.insert(Tree::copies, tree.size(), known) == of_call);
  for (const std::int64_t wrong : {std::int64_t{-16}, known + 16, INT64_MAX / 16 * 16}) CHECK(tree.refuses(wrong));
  CHECK(tree.insert(Tree::copies, tree.size(), known) == of_call);
}
