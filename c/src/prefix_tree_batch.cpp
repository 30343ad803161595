// SPDX-License-Identifier: Apache-2.0
// Calls of a prefix tree that take or tell several prompts or nodes, and locks.
#include <stateport/c/prefix_tree.h>

#include "arguments.hpp"
#include "containers/reserve_amortised.hpp"
#include "guard.hpp"
#include "prefix_tree.hpp"

#include <algorithm>
#include <limits>

using namespace stateport;
using namespace stateport::c;

namespace {

struct Asked {
  std::span<const Token> tokens;
  std::span<KvIndex> kv_out;
  Namespace name_space;
  Lookup kind;
};

/// Everything that the tree would refuse is refused here, so that the lookups are all done or none.
std::vector<Asked> read_lookups(const stateport_lookup* lookups, std::size_t count) {
  std::vector<Asked> result;
  for (const stateport_lookup& given : read_structs(lookups, count, "lookups")) {
    require(given.count <= std::numeric_limits<std::int32_t>::max(), "tokens", given.count, "is too long");
    result.push_back({.tokens = array(given.tokens, given.count, "tokens"),
                      .kv_out = {given.kv_out, given.kv_out == nullptr ? 0 : given.count},
                      .name_space = from_c(given.name_space),
                      .kind = given.again != 0 ? Lookup::again : Lookup::request});
  }
  return result;
}

std::vector<NodeId> read_nodes(const std::uint64_t* nodes, std::size_t count) {
  std::vector<NodeId> result;
  for (const std::uint64_t node : array(nodes, count, "nodes")) result.push_back(node_from_c(node));
  return result;
}

/// Makes room for the KV that each of them may free. The KV that the tree has (prev_tokens) needs none: if the tree
/// lacks it the prefix is refused.
void make_room(TreeObject& tree, std::span<const PrefixInsert> prefixes) {
  std::size_t tokens = 0;
  for (const PrefixInsert& prefix : prefixes) {
    tokens += static_cast<std::size_t>(
        std::max<std::int64_t>(std::ssize(prefix.tokens) - std::max<std::int64_t>(prefix.prev_tokens, 0), 0));
  }
  constexpr std::size_t most = std::numeric_limits<std::int32_t>::max();  // more is refused when its turn comes
  tokens = std::min(tokens, most);
  detail::reserve_amortised(tree.freed.kv, tree.freed.kv.size() + tokens);
  tree.freed.slots.reserve(static_cast<std::size_t>(tree.tree.slots().capacity_slots()));
}

}  // namespace

stateport_status stateport_tree_match_many(stateport_tree* tree, const stateport_lookup* lookups, size_t count,
                                           stateport_match* out) {
  return guarded([&] {
    const Held<TreeObject> held(tree, "tree");
    const auto asked = read_lookups(lookups, count);
    const OutArray result(out, count, "out");
    for (std::size_t i = 0; i < asked.size(); ++i)
      result.write(i, to_c(held->tree.match(asked[i].tokens, asked[i].name_space, asked[i].kv_out, asked[i].kind)));
  });
}

stateport_status stateport_tree_insert_many(stateport_tree* tree, const stateport_insert* prefixes, size_t count,
                                            stateport_insert_result* out, size_t* done) {
  return guarded([&] {
    const Held<TreeObject> held(tree, "tree");
    std::vector<PrefixInsert> wanted;
    for (const stateport_insert& given : read_structs(prefixes, count, "prefixes")) wanted.push_back(from_c(given));
    const OutArray result(out, count, "out");
    std::size_t& kept = checked(done, "done");
    kept = 0;
    held->freed.slots.clear();
    make_room(*held, wanted);
    for (const PrefixInsert& prefix : wanted) {
      result.write(kept, to_c(held->tree.insert(prefix, held->freed)));
      ++kept;
    }
  });
}

stateport_status stateport_tree_touch(stateport_tree* tree, const uint64_t* nodes, size_t count) {
  return guarded([&] {
    const Held<TreeObject> held(tree, "tree");
    held->tree.touch(read_nodes(nodes, count));
  });
}

stateport_status stateport_tree_peek_victims(stateport_tree* tree, int32_t kind, stateport_victim* out, size_t capacity,
                                             size_t* count) {
  return guarded([&] {
    const Held<TreeObject> held(tree, "tree");
    const OutArray result(out, capacity, "out");
    std::size_t& reported = checked(count, "count");
    std::vector<Victim> victims(std::min(capacity, held->tree.node_count()));
    reported = held->tree.peek_victims(enumerator(kind, VictimKind::bytes, "kind"), victims);
    for (std::size_t i = 0; i < reported; ++i) result.write(i, to_c(victims[i]));
  });
}

stateport_status stateport_tree_drop_state(stateport_tree* tree, uint64_t node) {
  return guarded([&] {
    const Held<TreeObject> held(tree, "tree");
    held->tree.drop_state(node_from_c(node), held->collect());
  });
}

stateport_status stateport_tree_lock_node(stateport_tree* tree, uint64_t node, stateport_tree_lock** out) {
  return guarded([&] {
    create(out, [&] {
      const auto object = std::make_shared<LockObject>(find<TreeObject>(tree, "tree"));
      const std::lock_guard turn(object->tree->mutex());
      if (node != 0) object->lock = object->tree->tree.lock(node_from_c(node));
      return object;
    });
  });
}

stateport_status stateport_tree_lock_destroy(stateport_tree_lock* lock) {
  return guarded([&] { destroy<LockObject>(lock, "lock"); });
}

stateport_status stateport_tree_lock_nodes(stateport_tree* tree, const uint64_t* nodes, size_t count,
                                           stateport_tree_lock** out) {
  return guarded([&] {
    const auto of = find<TreeObject>(tree, "tree");
    const std::vector<NodeId> wanted = read_nodes(nodes, count);
    const auto room = array(out, count, "out");
    // Locks that are dropped when this is refused take the tree's mutex, so they are made before the turn and dropped
    // after it.
    std::vector<std::shared_ptr<Object>> locks;
    std::vector<LockObject*> made;
    for (std::size_t i = 0; i < count; ++i) {
      const auto object = std::make_shared<LockObject>(of);
      made.push_back(object.get());
      locks.push_back(object);
    }
    {
      const std::lock_guard turn(of->mutex());
      for (std::size_t i = 0; i < count; ++i) made[i]->lock = of->tree.lock(wanted[i]);
    }
    std::vector<void*> handles(count);
    HandleTable::instance().add(locks, handles);
    std::ranges::transform(handles, room.begin(),
                           [](void* handle) { return static_cast<stateport_tree_lock*>(handle); });
  });
}

stateport_status stateport_tree_locks_destroy(stateport_tree_lock* const* locks, size_t count) {
  return guarded([&] {
    std::vector<const void*> named;
    for (const stateport_tree_lock* lock : array(locks, count, "locks"))
      if (lock != nullptr) named.push_back(lock);
    static_cast<void>(HandleTable::instance().remove(named, LockObject::kind, "locks"));
  });
}
