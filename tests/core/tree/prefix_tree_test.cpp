// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/tree/prefix_tree.hpp>

#include <stateport/core/model/error.hpp>

#include "heap_counter.hpp"
#include "tree_insert.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <new>
#include <numeric>
#include <string>
#include <vector>

using namespace stateport;

namespace {

using Key = std::vector<Token>;
using test::insert;

Key iota_key(std::size_t tokens) {
  Key key(tokens);
  std::iota(key.begin(), key.end(), 0);
  return key;
}

}  // namespace

TEST_CASE("a prefix tree refuses bad options") {
  CHECK_THROWS_AS(PrefixTree({.page_size = 0}), InvalidArgument);
  CHECK_THROWS_AS(PrefixTree({.slots = -1}), InvalidArgument);
  CHECK_THROWS_AS(PrefixTree({.chunk_size = 0}), InvalidArgument);
  CHECK_THROWS_AS(PrefixTree({.max_states_per_path = -2}), InvalidArgument);
  CHECK_THROWS_AS(PrefixTree({.kv_indices = -1}), InvalidArgument);
  CHECK_THROWS_AS(PrefixTree({.eviction = static_cast<EvictionOrder>(99)}), InvalidArgument);
}

TEST_CASE("insert refuses arguments that would break the tree and changes nothing") {
  PrefixTree tree({.page_size = 2, .slots = 4, .kv_indices = 100});
  insert(tree, {1, 2, 3, 4}, 0);
  const std::string before = tree.pretty_print();
  Freed freed;
  const Key key{1, 2, 3, 4, 5, 6};
  const std::vector<KvIndex> kv{10, 11, 12, 13, 14, 15};
  SlotId slot;
  REQUIRE(tree.allocate_slots({&slot, 1}));
  const auto refuses = [&](PrefixInsert prefix, const char* argument) {
    try {
      tree.insert(prefix, freed);
      FAIL("not refused: " << argument);
    } catch (const InvalidArgument& error) {
      CHECK(error.argument() == argument);
    }
  };
  refuses({.tokens = key, .kv = std::span(kv).first(5)}, "kv");
  refuses({.tokens = key, .kv = kv, .prev_tokens = 1}, "prev_tokens");
  refuses({.tokens = key, .kv = kv, .prev_tokens = -2}, "prev_tokens");
  refuses({.tokens = key, .kv = kv, .prev_tokens = 6}, "prev_tokens");
  const std::vector<KvIndex> negative{10, 11, 12, 13, 14, -1};
  const std::vector<KvIndex> beyond{10, 11, 12, 13, 14, 100};
  const std::vector<KvIndex> owned{10, 11, 12, 13, 14, 3};
  const std::vector<KvIndex> twice{10, 11, 12, 13, 14, 14};
  const std::vector<KvIndex> twice_before{14, 11, 12, 13, 14, 15};  // a duplicate that would come back, and a new one
  refuses({.tokens = key, .kv = negative}, "kv");
  refuses({.tokens = key, .kv = beyond}, "kv");
  refuses({.tokens = key, .kv = owned}, "kv");
  refuses({.tokens = key, .kv = twice}, "kv");
  refuses({.tokens = key, .kv = twice_before}, "kv");
  refuses({.tokens = key, .kv = kv, .slot = SlotId{3}}, "slot");   // free
  refuses({.tokens = key, .kv = kv, .slot = SlotId{4}}, "slot");   // out of range
  refuses({.tokens = key, .kv = kv, .slot = SlotId{-5}}, "slot");  // not a slot
  refuses({.tokens = key, .kv = kv, .slot = SlotId{0}}, "slot");   // owned by a node
  refuses({.tokens = key, .kv = kv, .slot = slot}, "slot");        // holds nothing
  tree.tag_slot(slot, tree.state_tag(std::span(key).first(4)));
  refuses({.tokens = key, .kv = kv, .slot = slot}, "slot");  // holds the state of another position
  const Key other{1, 2, 3, 4, 5, 7};
  tree.tag_slot(slot, tree.state_tag(other));
  refuses({.tokens = key, .kv = kv, .slot = slot}, "slot");  // holds the state of another prefix
  tree.tag_slot(slot, tree.state_tag(key, {.extra_key = "adapter"}));
  refuses({.tokens = key, .kv = kv, .slot = slot}, "slot");  // holds the state of another namespace
  CHECK(tree.pretty_print() == before);
  CHECK(freed.kv.empty());
  tree.check_invariants();
  CHECK(tree.insert({.tokens = key, .kv = kv}, freed).prefix_tokens == 4);  // the refused inserts left nothing behind
  tree.check_invariants();
}

TEST_CASE("an unaligned key cannot hang a deeper state on a page boundary") {
  PrefixTree tree({.page_size = 4, .slots = 1});
  const Key key = iota_key(6);
  std::vector<KvIndex> kv(6, 0);
  std::iota(kv.begin(), kv.end(), 0);
  SlotId slot;
  REQUIRE(tree.allocate_slots({&slot, 1}));
  tree.tag_slot(slot, tree.state_tag(key));
  Freed freed;
  CHECK_THROWS_AS(tree.insert({.tokens = key, .kv = kv, .slot = slot}, freed), InvalidArgument);
  CHECK(tree.node_count() == 0);
}

TEST_CASE("lookups, locks and slots refuse bad arguments") {
  PrefixTree tree({.slots = 2});
  insert(tree, {1, 2, 3}, 0);
  const Key key{1, 2, 3};
  std::vector<KvIndex> short_row(2);
  CHECK_THROWS_AS(tree.match(key, {}, short_row), InvalidArgument);
  Freed freed;
  CHECK_THROWS_AS(tree.match_with_live_slot(key, {}, {}, SlotId{0}, freed), InvalidArgument);  // the node's
  CHECK_THROWS_AS(tree.match_with_live_slot(key, {}, {}, SlotId{1}, freed), InvalidArgument);  // free
  CHECK_THROWS_AS(tree.match_with_live_slot(key, {}, {}, SlotId{2}, freed), InvalidArgument);  // out of range
  CHECK_THROWS_AS(tree.match_with_live_slot(key, {}, {}, SlotId{-2}, freed), InvalidArgument);
  CHECK_THROWS_AS(tree.evict({.tokens = -1}, freed), InvalidArgument);
  CHECK_THROWS_AS(tree.evict({.states = -1}, freed), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(tree.lock(NodeId{7, 0})), InvalidArgument);
  CHECK_THROWS_AS(tree.touch(NodeId{1, 9}), InvalidArgument);
  const std::string before = tree.pretty_print();
  const std::array<NodeId, 3> one_unknown{tree.nodes().front().id, NodeId{1, 9}, NodeId{1'000'000, 0}};
  CHECK_THROWS_AS(tree.touch(one_unknown), InvalidArgument);
  CHECK(tree.pretty_print() == before);
  const SlotId owned{0};
  CHECK_THROWS_AS(tree.release_slots({&owned, 1}), InvalidArgument);
  CHECK_THROWS_AS(tree.tag_slot(owned, {}), InvalidArgument);
  tree.check_invariants();
}

TEST_CASE("the id of an evicted node is refused, also when its place is taken again") {
  PrefixTree tree({.slots = 2});
  const NodeId first = insert(tree, {1, 2, 3}, 0).node;
  const PrefixMatch hit = tree.match(Key{1, 2, 3});
  CHECK(hit.node == first);
  Freed freed;
  CHECK(tree.evict({.tokens = 1}, freed) == EvictResult{3, 1});
  CHECK(tree.check_restore(hit) == TagCheck::empty);
  const NodeId second = insert(tree, {4, 5, 6, 7}, 3).node;
  CHECK(second.index == first.index);
  CHECK_FALSE(tree.contains(first));
  CHECK_THROWS_AS(static_cast<void>(tree.lock(first)), InvalidArgument);
  insert(tree, {8}, 9);
  CHECK(tree.check_restore(hit) == TagCheck::token_count);
}

TEST_CASE("a lock protects a state that its node gets later") {
  PrefixTree tree({.slots = 4});
  const NodeId node = insert(tree, {1, 2, 3}, 0, false).node;
  insert(tree, {1, 2, 3, 4}, 10);
  PrefixLock first = tree.lock(node);
  PrefixLock second = tree.lock(node);
  CHECK(tree.node(node).state_lock == 2);
  CHECK(tree.sizes() == TreeSizes{1, 3, 1, 0});
  insert(tree, {1, 2, 3}, 20);
  CHECK(tree.sizes() == TreeSizes{1, 3, 1, 1});
  CHECK(tree.node(node).state_lock == 2);
  Freed freed;
  CHECK(tree.evict({.tokens = 9, .states = 9}, freed) == EvictResult{1, 1});
  first.release();
  CHECK_THROWS_AS(tree.drop_state(node, freed), InvalidArgument);
  CHECK(tree.evict({.states = 9}, freed) == EvictResult{});
  tree.check_invariants();
  second.release();
  CHECK(tree.sizes() == TreeSizes{3, 0, 1, 0});
  CHECK(tree.evict({.states = 9}, freed) == EvictResult{3, 1});
  tree.check_invariants();
}

TEST_CASE("locks of a node without a state leave its lost state lost") {
  PrefixTree tree({.slots = 4});
  const NodeId node = insert(tree, {1, 2}, 0).node;
  insert(tree, {1, 2, 3, 4}, 10, false);
  const auto lost = [&] { return tree.match(Key{1, 2, 3, 4}).lost; };
  Freed freed;
  tree.drop_state(node, freed);
  REQUIRE(lost() == LostHit::evicted);
  std::vector<PrefixLock> locks;
  for (int i = 0; i < 3; ++i) {
    locks.push_back(tree.lock(node));
    CHECK(lost() == LostHit::evicted);
  }
  CHECK(tree.match(Key{1}).node.is_root());  // the lower part of a split keeps the locks
  CHECK(tree.node(node).state_lock == 3);
  CHECK(tree.node(tree.node(node).parent).state_lock == 0);
  tree.check_invariants();
  locks.clear();
  CHECK(tree.node(node).state_lock == 0);
  CHECK(lost() == LostHit::evicted);
  tree.check_invariants();
}

TEST_CASE("a split makes no state recent") {
  PrefixTree tree({.slots = 4, .eviction = EvictionOrder::lru});
  const NodeId oldest = insert(tree, {1, 2, 3, 4}, 0).node;
  const NodeId newest = insert(tree, {5, 6}, 10).node;
  CHECK(tree.match(Key{1, 2}).node.is_root());
  CHECK(tree.node_count() == 3);
  insert(tree, {1, 2, 3, 9}, 20, false);
  CHECK(tree.node_count() == 5);
  Freed freed;
  CHECK(tree.evict({.states = 1}, freed) == EvictResult{1, 1});
  CHECK_FALSE(tree.contains(oldest));
  CHECK(tree.contains(newest));
}

TEST_CASE("a lock forgets a node that it may not unlock") {
  PrefixLock outlives;
  {
    PrefixTree tree({.slots = 2});
    const NodeId node = insert(tree, {1, 2, 3}, 0, false).node;
    PrefixLock lock = tree.lock(node);
    insert(tree, {1, 2, 3}, 10);
    CHECK(tree.sizes().protected_states == 1);
    PrefixLock moved = std::move(lock);
    lock.release();
    CHECK(tree.sizes().protected_tokens == 3);
    moved = tree.lock(node);
    CHECK(tree.sizes() == TreeSizes{0, 3, 0, 1});
    Freed freed;
    tree.reset(freed);
    CHECK(freed.slots.size() == 1);
    insert(tree, {1, 2, 3}, 20, false);
    moved.release();  // of a node that is forgotten
    CHECK(tree.sizes() == TreeSizes{3, 0, 0, 0});
    tree.check_invariants();
    outlives = tree.lock(tree.nodes().front().id);
  }
  outlives.release();
  CHECK(outlives.node().is_root());
}

TEST_CASE("a split leaves the state with the lower part") {
  PrefixTree tree({.slots = 2});
  const NodeId node = insert(tree, {1, 2, 3, 4}, 0).node;
  const PrefixLock lock = tree.lock(node);
  CHECK(tree.match(Key{1, 2}).node.is_root());
  const std::vector<NodeInfo> nodes = tree.nodes();
  REQUIRE(nodes.size() == 2);
  CHECK(nodes[0].end_tokens == 2);
  CHECK_FALSE(nodes[0].slot.valid());
  CHECK(nodes[0].full_lock == 1);
  CHECK(nodes[0].state_lock == 0);
  CHECK(nodes[1].id == node);
  CHECK(nodes[1].slot.valid());
  CHECK(nodes[1].state_lock == 1);
  tree.check_invariants();
}

TEST_CASE("a state whose tag is not that of its node is not answered") {
  PrefixTree tree({.slots = 4, .layout_fingerprint = 5});
  insert(tree, {1, 2}, 0);
  insert(tree, {1, 2, 3, 4}, 10);
  const Key key{1, 2, 3, 4};
  const PrefixMatch right = tree.match(key);
  REQUIRE(right.tokens == 4);
  auto& pool = const_cast<SlotPool&>(tree.slots());  // no call of the tree lets its slots be tagged
  StateTag wrong_count = right.tag;
  ++wrong_count.token_count;
  StateTag wrong_layout = right.tag;
  ++wrong_layout.layout_fingerprint;
  for (const StateTag& wrong : {wrong_count, wrong_layout, StateTag{}}) {
    pool.set_tag(right.slot, wrong);
    const PrefixMatch hit = tree.match(key);
    CHECK(hit.tokens == 2);
    CHECK(hit.tag == tree.state_tag(std::span(key).first(2)));
    CHECK(hit.walked_tokens == 4);
    CHECK(hit.branching_position == 4);
    CHECK(hit.lost == LostHit::no_checkpoint);
    pool.set_tag(hit.slot, wrong);
    Freed freed;
    const PrefixMatch miss = tree.match_with_live_slot(key, {}, {}, {}, freed);
    CHECK(miss.node.is_root());
    CHECK(!miss.slot.valid());
    CHECK(!miss.live_slot.valid());
    CHECK(miss.lost == LostHit::no_checkpoint);
    pool.set_tag(hit.slot, hit.tag);
  }
  pool.set_tag(right.slot, right.tag);
  CHECK(tree.match(key).tokens == 4);
  tree.check_invariants();
}

TEST_CASE("a lost hit has a reason") {
  PrefixTree tree({.slots = 3, .chunk_size = 4});
  insert(tree, iota_key(9), 0);
  CHECK(tree.match(iota_key(9)).lost == std::nullopt);
  CHECK(tree.match(iota_key(6)).lost == LostHit::no_checkpoint);
  CHECK(tree.match(iota_key(6)).branching_position == 4);
  CHECK(tree.match(iota_key(3)).lost == LostHit::off_grid);
  insert(tree, iota_key(6), 20);
  insert(tree, iota_key(9), 30);
  tree.match(iota_key(9));
  Freed freed;
  CHECK(tree.evict({.states = 1}, freed) == EvictResult{0, 1});  // the inner node, least recently used
  CHECK(tree.match(iota_key(6)).lost == LostHit::evicted);
  std::vector<SlotId> rest(2);
  REQUIRE(tree.allocate_slots(rest));
  const PrefixMatch degraded = tree.match_with_live_slot(iota_key(9), {}, {}, {}, freed);
  CHECK(degraded.node.is_root());
  CHECK(degraded.lost == LostHit::locked_pool);
  CHECK(degraded.branching_position == std::nullopt);
  CHECK(tree.sizes().evictable_states == 1);
}

TEST_CASE("a state lost above the answer is not why the rest of the walk is unusable") {
  PrefixTree tree({.slots = 2});
  insert(tree, iota_key(2), 0);
  insert(tree, iota_key(4), 10);
  insert(tree, iota_key(6), 20, false);
  Freed freed;
  CHECK(tree.evict({.states = 1}, freed) == EvictResult{0, 1});  // of the first two tokens
  const PrefixMatch below = tree.match(iota_key(6));
  CHECK(below.tokens == 4);
  CHECK(below.walked_tokens == 6);
  CHECK(below.lost == LostHit::no_checkpoint);
  CHECK(tree.match(iota_key(3)).lost == LostHit::evicted);
  tree.check_invariants();
}

TEST_CASE("namespaces share nothing and vanish with their last node") {
  PrefixTree tree({.slots = 4});
  const std::string long_name(100, 'x');
  const Namespace names[] = {{}, {.extra_key = ""}, {.salt = ""}, {.extra_key = long_name, .salt = "s"}};
  for (KvIndex i = 0; i < 4; ++i) insert(tree, {1, 2, 3}, 10 * i, true, names[i]);
  CHECK(tree.node_count() == 4);
  for (KvIndex i = 0; i < 4; ++i) {
    std::vector<KvIndex> kv(3);
    CHECK(tree.match(Key{1, 2, 3}, names[i], kv).tokens == 3);
    CHECK(kv.front() == 10 * i);
  }
  CHECK(tree.pretty_print().find("namespace") != std::string::npos);
  Freed freed;
  tree.evict({.tokens = 12}, freed);
  CHECK(tree.match(Key{1, 2, 3}, names[3]).node.is_root());
  tree.check_invariants();
}

TEST_CASE("namespaces share nothing, even when hashes collide") {
  // A child is found by 32 bits: among so large a number of namespaces with one prompt some pairs share them.
  constexpr KvIndex tenants = 60'000;
  PrefixTree tree({.eviction = EvictionOrder::lru});
  const std::vector<Token> prompt = {0};
  Freed freed;
  const auto insert_for = [&](KvIndex tenant, std::int64_t known) {
    const std::string salt = std::to_string(tenant);
    const PrefixInsert prefix{.tokens = prompt, .kv = {&tenant, 1}, .name_space = {.salt = salt}, .prev_tokens = known};
    return tree.insert(prefix, freed).node;
  };
  std::vector<NodeId> nodes;
  for (KvIndex tenant = 0; tenant < tenants; ++tenant) nodes.push_back(insert_for(tenant, 0));
  KvIndex mistaken = 0;
  for (KvIndex tenant = 0; tenant < tenants; ++tenant)
    mistaken += insert_for(tenant, 1) != nodes[static_cast<std::size_t>(tenant)];
  CHECK(mistaken == 0);
  CHECK(tree.node_count() == tenants);
}

TEST_CASE("match allocates nothing, whether it hits, misses or splits") {
  PrefixTree tree({.page_size = 2, .slots = 8, .reserve_nodes = 64});
  const Namespace tenant{.salt = "a salt that is too long for the small string of a library"};
  insert(tree, iota_key(64), 0, true, tenant);
  insert(tree, iota_key(64), 100);
  const Key key = iota_key(64);
  const Key half = iota_key(32);
  const Key miss{9, 9};
  std::vector<KvIndex> kv(64);
  const std::uint64_t before = test::heap_allocations();
  const PrefixMatch hit = tree.match(key, tenant, kv);
  const PrefixMatch cut = tree.match(half, tenant, kv);
  tree.match(miss, tenant, kv);
  tree.match(key, {.extra_key = "unknown"}, kv);
  PrefixLock lock = tree.lock(hit.node);
  lock.release();
  const std::uint64_t after = test::heap_allocations();
  CHECK(after == before);
  CHECK(hit.tokens == 64);
  CHECK(cut.node.is_root());
  CHECK(tree.node_count() == 3);
}

TEST_CASE("a path is found when nodes of it have gone and serve elsewhere") {
  PrefixTree tree({.slots = 2});
  const auto insert_by_token = [&tree](const Key& key, KvIndex kv) {
    for (std::size_t tokens = 1; tokens < key.size(); ++tokens)
      insert(tree, {key.begin(), key.begin() + static_cast<std::ptrdiff_t>(tokens)}, kv, false);
    insert(tree, key, kv);
  };
  const Key first = iota_key(40);
  insert_by_token(first, 0);
  CHECK(tree.match(first).tokens == 40);
  Freed freed;
  tree.evict({.tokens = 15}, freed);
  Key second = first;  // takes the nodes that the end of `first` had
  std::fill(second.begin() + 10, second.end(), 7);
  insert_by_token(second, 100);
  std::vector<KvIndex> kv(40);
  for (int time = 0; time < 2; ++time) {
    CHECK(tree.match(second, {}, kv).tokens == 40);
    CHECK(kv[9] == 9);
    CHECK(kv[10] == 110);
    CHECK(kv[39] == 139);
    CHECK(tree.match(first).walked_tokens == 25);
  }
  tree.check_invariants();
}

TEST_CASE("a lookup without a node at hand answers alike and leaves the edge whole") {
  PrefixTree tree({.reserve_nodes = 0});
  insert(tree, iota_key(2000), 0, false);
  std::size_t nodes = 0;
  for (std::size_t tokens = 1999; tokens > 0; --tokens) {
    CHECK(tree.match(iota_key(tokens)).walked_tokens == static_cast<std::int64_t>(tokens));
    nodes = tree.node_count();
  }
  CHECK(nodes < 2000);
  insert(tree, {7}, 5000, false);
  tree.match(iota_key(1));
  CHECK(tree.node_count() == nodes + 2);
  tree.check_invariants();
}

TEST_CASE("steady eviction and insertion allocate nothing") {
  PrefixTree tree({.page_size = 4, .slots = 64, .reserve_nodes = 1024, .reserve_tokens = 4096});
  Freed freed;
  freed.kv.reserve(4096);
  freed.slots.reserve(64);
  std::vector<KvIndex> kv(8);
  Key key(8);
  std::uint64_t before = 0;
  for (int round = 0; round < 300; ++round) {
    if (round == 100) before = test::heap_allocations();
    if (tree.slots().free_slots() == 0) {
      freed.clear();
      tree.evict({.tokens = 16}, freed);
    }
    std::iota(key.begin(), key.end(), 8 * round);
    std::iota(kv.begin(), kv.end(), 8 * round);
    SlotId slot;
    REQUIRE(tree.allocate_slots({&slot, 1}));
    tree.tag_slot(slot, tree.state_tag(key));
    tree.insert({.tokens = key, .kv = kv, .slot = slot}, freed);
  }
  CHECK(test::heap_allocations() == before);
  tree.check_invariants();
}

TEST_CASE("an insert or an eviction that runs out of memory changes nothing") {
  int failures = 0;
  for (std::uint64_t allocation = 1;; ++allocation) {
    PrefixTree tree({.slots = 2, .reserve_nodes = 0});
    insert(tree, {1, 2, 3, 4}, 0);
    for (KvIndex i = 0; i < 255; ++i) insert(tree, {10 + i}, 10 + i, false);  // the next insert makes room for nodes
    const Key key{1, 2, 3, 5, 6};
    const std::vector<KvIndex> kv{300, 301, 302, 303, 304};
    const std::vector<KvIndex> other_kv{400, 401, 402, 403, 404};
    const Namespace name{.salt = "a name that does not fit into a small string"};
    const std::string before = tree.pretty_print();
    Freed freed;
    bool inserted = false;
    test::fail_heap_allocation(allocation);
    try {
      tree.insert({.tokens = key, .kv = kv}, freed);
      inserted = true;
      tree.insert({.tokens = key, .kv = other_kv, .name_space = name}, freed);
      tree.evict({.tokens = 6}, freed);
      test::fail_heap_allocation(0);
      break;
    } catch (const std::bad_alloc&) {
      test::fail_heap_allocation(0);
      ++failures;
      if (!inserted) CHECK((tree.pretty_print() == before && freed.kv.empty()));
      tree.check_invariants();
    }
  }
  CHECK(failures >= 2);
}

TEST_CASE("states that inserts free find room in a few steps, however many states a path drops") {
  constexpr std::int32_t count = 1000;
  PrefixTree tree({.slots = 2, .max_states_per_path = 1, .reserve_nodes = 2 * count, .reserve_tokens = count});
  Key key(count);
  std::iota(key.begin(), key.end(), 0);
  Freed freed;
  std::uint64_t before = 0;
  for (std::size_t tokens = 1; tokens <= key.size(); ++tokens) {
    const std::span<const Token> prefix = std::span(key).first(tokens);
    SlotId slot;
    REQUIRE(tree.allocate_slots({&slot, 1}));
    tree.tag_slot(slot, tree.state_tag(prefix));
    if (tokens == 2) before = test::heap_allocations();
    const auto held = static_cast<std::int64_t>(tokens) - 1;
    tree.insert({.tokens = prefix, .kv = prefix, .slot = slot, .prev_tokens = held}, freed);
  }
  CHECK(freed.slots.size() == count - 1);
  CHECK(test::heap_allocations() - before < 100);
}

TEST_CASE("a reset that runs out of memory changes nothing") {
  PrefixTree tree({.slots = 2});
  const NodeId node = insert(tree, {1, 2, 3, 4}, 0).node;
  const PrefixLock lock = tree.lock(node);
  const std::string before = tree.pretty_print();
  for (const std::uint64_t allocation : {1U, 2U}) {
    Freed freed;
    test::fail_heap_allocation(allocation);
    CHECK_THROWS_AS(tree.reset(freed), std::bad_alloc);
    test::fail_heap_allocation(0);
    CHECK(tree.pretty_print() == before);
    tree.check_invariants();
    CHECK(freed.kv.empty());
  }
}

TEST_CASE("a split moves no token") {
  PrefixTree tree({.reserve_nodes = 128});
  insert(tree, iota_key(10000), 0, false);
  const Token* whole = tree.nodes().front().tokens.data();
  tree.match(iota_key(5000));
  const std::vector<NodeInfo> nodes = tree.nodes();
  REQUIRE(nodes.size() == 2);
  CHECK(nodes[0].tokens.data() == whole);
  CHECK(nodes[1].tokens.data() == whole + 5000);
}

TEST_CASE("the same long edge can be split by 100,000 inserts") {
  constexpr std::size_t splits = 100000;
  PrefixTree tree({});
  Key key = iota_key(splits + 1);
  std::vector<KvIndex> kv(splits + 1);
  std::iota(kv.begin(), kv.end(), 0);
  Freed freed;
  tree.insert({.tokens = key, .kv = kv}, freed);
  for (std::size_t tokens = splits; tokens > 0; --tokens) {
    key[tokens] = -1;  // leaves the edge here; longer keys have passed the tokens after it
    kv[tokens] = static_cast<KvIndex>(splits + tokens);
    const auto prefix = static_cast<std::int64_t>(tokens);
    const InsertResult result = tree.insert(
        {.tokens = std::span(key).first(tokens + 1), .kv = std::span(kv).first(tokens + 1), .prev_tokens = prefix},
        freed);
    REQUIRE(result.prefix_tokens == prefix);
  }
  CHECK(freed.kv.empty());
  CHECK(tree.node_count() == 2 * splits + 1);
  tree.check_invariants();
}

TEST_CASE("a very deep chain is walked, locked, printed and evicted without recursion") {
  // Cut from below: a lookup of p tokens compares p tokens, whatever the tree does.
  const std::size_t depth = std::getenv("STATEPORT_TEST_SLOW") != nullptr ? 1000000 : 60000;
  PrefixTree tree({.slots = 1, .reserve_nodes = depth});
  const Key key = iota_key(depth);
  insert(tree, key, 0);
  for (std::size_t tokens = depth - 1; tokens > 0; --tokens) tree.match(std::span(key).first(tokens));
  REQUIRE(tree.node_count() == depth);
  std::vector<KvIndex> kv(depth);
  const PrefixMatch hit = tree.match(key, {}, kv);
  CHECK(hit.tokens == static_cast<std::int64_t>(depth));
  CHECK(std::ranges::equal(kv, key));
  PrefixLock lock = tree.lock(hit.node);
  CHECK(tree.sizes().protected_tokens == static_cast<std::int64_t>(depth));
  lock.release();
  tree.touch(hit.node);
  tree.check_invariants();
  CHECK(std::ranges::count(tree.pretty_print(), '\n') == static_cast<std::ptrdiff_t>(depth));
  Freed freed;
  CHECK(tree.evict({.tokens = static_cast<std::int64_t>(depth)}, freed).tokens == static_cast<std::int64_t>(depth));
  CHECK(tree.node_count() == 0);
  tree.check_invariants();
}
