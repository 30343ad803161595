// SPDX-License-Identifier: Apache-2.0
// The cost of the prefix tree beside the bare loops that any such tree needs.
//   B2 match of a cached prompt of 32k tokens, page 16, in 8 edges against memcmp of the same tokens, and as 2,048
// one-page nodes against a chain of flat-map finds; both in small and in large trees; its growth from small to large
// trees, and that of the least work of any match (Lines). Prompts were matched before, unless a row says that they were
// not
//   B3 a use, one or 64 a call, against moving a node to the front of a bare list; evict one + insert one against a
//      bare flat-map erase + insert + list link, 10^6 nodes in random order; the same with 99 % of the nodes locked
//   R2 the same by the learned hazard index against least recent use, where each node has a state
#include <stateport/core/tree/prefix_tree.hpp>

#include "comparison.hpp"
#include "containers/flat_map.hpp"
#include "containers/prefetch.hpp"
#include "containers/table.hpp"

#include <benchmark/benchmark.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

namespace stateport::perf {
namespace {

constexpr std::int32_t page_size = 16;
constexpr std::size_t page = page_size;
constexpr int rounds = 31;

using Key = std::vector<Token>;

Key random_key(std::mt19937_64& random, std::size_t tokens) {
  Key key(tokens);
  for (Token& token : key) token = static_cast<Token>(random() & 0x1FFFF);
  return key;
}

/// Prompts in one tree, each with a state at its end and cut into `nodes` equal edges, beside `others` one-page nodes.
struct Prompts {
  Prompts(std::size_t count, std::size_t tokens, std::size_t nodes, std::size_t others = 0,
          EvictionOrder eviction = EvictionOrder::lru)
      : tree({.page_size = page_size,
              .slots = static_cast<std::int32_t>(count),
              .eviction = eviction,
              .reserve_nodes = count * nodes + others,
              .reserve_tokens = count * tokens + others * page}),
        kv_out(tokens) {
    std::mt19937_64 random(count + nodes);
    std::vector<KvIndex> kv(tokens);
    std::iota(kv.begin(), kv.end(), 0);
    Freed freed;
    for (std::size_t i = 0; i < count; ++i) {
      keys.push_back(random_key(random, tokens));
      SlotId slot;
      if (!tree.allocate_slots({&slot, 1})) std::abort();
      tree.tag_slot(slot, tree.state_tag(keys.back()));
      tree.insert({.tokens = keys.back(), .kv = kv, .slot = slot}, freed);
    }
    for (std::size_t i = 0; i < others; ++i)
      tree.insert({.tokens = random_key(random, page), .kv = std::span(kv).first(page)}, freed);
    // Cut from below, all prompts in turn: the nodes of a path lie far apart.
    for (std::size_t edge = nodes - 1; edge > 0; --edge)
      for (const Key& key : keys) tree.match(std::span(key).first(edge * (tokens / nodes)));
    if (tree.node_count() != count * nodes + others) std::abort();
    order.resize(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::shuffle(order, random);
  }
  const Key& key(std::size_t round) const { return keys[order[round % order.size()]]; }
  void match_all() {
    for (const Key& key : keys) tree.match(key);
  }
  void match(std::size_t round) { benchmark::DoNotOptimize(tree.match(key(round), {}, kv_out)); }

  PrefixTree tree;
  std::vector<Key> keys;
  std::vector<std::size_t> order;
  std::vector<KvIndex> kv_out;
};

/// The hash of a page under a parent, as cheap as a chain of finds can have it.
std::uint64_t page_hash(std::uint32_t parent, const Token* tokens) {
  return XXH3_64bits(tokens, sizeof(Token) * page) ^ parent * 0x9E3779B97F4A7C15U;
}

/// The same prompts as a chain of one find a page in one flat map.
struct Chains {
  explicit Chains(const std::vector<Key>& prompts) {
    std::size_t pages = 0;
    for (const Key& key : prompts) pages += key.size() / page;
    map.reserve(pages);
    for (const Key& key : prompts) {
      std::uint32_t parent = 0;
      for (std::size_t at = 0; at < key.size(); at += page) {
        map[page_hash(parent, key.data() + at)] = ++nodes;
        parent = nodes;
      }
    }
  }
  void find(const Key& key) const {
    std::uint32_t parent = 0;
    for (std::size_t at = 0; at < key.size(); at += page) {
      const auto entry = map.find(page_hash(parent, key.data() + at));
      if (entry == map.end()) std::abort();
      parent = entry->second;
    }
    benchmark::DoNotOptimize(parent);
  }
  FlatMap<std::uint64_t, std::uint32_t> map;
  std::uint32_t nodes = 0;
};

/// The least work of a match over nodes of one cache line each. It finds the first node by its page. Of each node it
/// reads the line, stores a tick, compares the tokens with the prompt's and copies the KV indices. It is given the
/// places of all nodes behind the first.
struct Lines {
  explicit Lines(const std::vector<Key>& prompts)
      : count(prompts.size()), pages(prompts.front().size() / page), nodes(count * pages), kv(count * pages) {
    first_nodes.reserve(count);
    for (const Key& key : prompts) {
      first_nodes[page_hash(0, key.data())] = static_cast<std::uint32_t>(tokens.size() / page);
      tokens.insert(tokens.end(), key.begin(), key.end());
    }
  }
  void match(const Key& key, std::vector<KvIndex>& kv_out) {
    const std::size_t first = first_nodes.find(page_hash(0, key.data()))->second;
    // A level lies beside the same level of all prompts, as in a tree whose prompts were cut in turn.
    const auto line = [&](std::size_t level) { return (pages - 1 - level) * count + first / pages; };
    const auto fetch = [&](std::size_t level) {
      detail::prefetch_early(&nodes[line(level)]);
      detail::prefetch(&tokens[(first + level) * page]);
      detail::prefetch(&kv[first + level]);
      detail::prefetch(&key[level * page]);
    };
    detail::for_each_prefetched(pages, fetch, [&](std::size_t level) {
      const std::size_t at = first + level;
      Line& node = nodes[line(level)];
      if (node.parent != 0 || std::memcmp(&tokens[at * page], &key[level * page], sizeof(Token) * page) != 0)
        std::abort();
      std::memcpy(&kv_out[level * page], &kv[at], sizeof(Line));
      node.tick = ++ticks;
    });
  }
  struct alignas(64) Line {
    std::uint64_t parent = 0;
    std::uint64_t tick = 0;
  };
  static_assert(sizeof(Line) == sizeof(KvIndex) * page);
  std::size_t count;
  std::size_t pages;
  FlatMap<std::uint64_t, std::uint32_t> first_nodes;
  Table<Line> nodes;
  Table<Token> tokens;
  Table<Line> kv;
  std::uint64_t ticks = 0;
};

constexpr std::size_t prompt_tokens = 32768;

/// In a tree of `range(0)` nodes, 1,000 of which hold the prompts.
void match_in_8_edges(benchmark::State& state) {
  constexpr std::size_t edges = 8;
  constexpr std::size_t count = 125;
  const std::size_t others = static_cast<std::size_t>(state.range(0)) - count * edges;
  Prompts prompts(count, prompt_tokens, edges, others);
  Prompts learned(count, prompt_tokens, edges, others, EvictionOrder::hix);
  std::vector<Key> copies = prompts.keys;
  std::vector<KvIndex> row(prompt_tokens);
  std::map<const Key*, std::size_t> place;
  for (std::size_t i = 0; i < copies.size(); ++i) place[&prompts.keys[i]] = i;
  const auto compare_tokens = [&](int round) {
    const Key& key = prompts.key(static_cast<std::size_t>(round));
    benchmark::DoNotOptimize(std::memcmp(key.data(), copies[place[&key]].data(), key.size() * sizeof(Token)));
  };
  report(state,
         {{"match", [&](int round) { prompts.match(static_cast<std::size_t>(round)); }},
          {"memcmp", compare_tokens},
          {"hix_match", [&](int round) { learned.match(static_cast<std::size_t>(round)); }}},
         0, rounds);
}

void match_in_pages(benchmark::State& state) {
  Prompts prompts(64, prompt_tokens, prompt_tokens / page);
  prompts.match_all();
  const Chains chains(prompts.keys);
  report(state,
         {{"match", [&](int round) { prompts.match(static_cast<std::size_t>(round)); }},
          {"chain", [&](int round) { chains.find(prompts.key(static_cast<std::size_t>(round))); }}},
         0, rounds);
}

constexpr std::uint32_t many = 1'000'000;
/// Nodes a run, in as many prompts as they make.
constexpr std::size_t nodes_per_run = 4096;

/// Once for each prompt of a run.
template <class Body>
auto each_prompt(std::size_t pages, Body body) {
  return [body, matches = nodes_per_run / pages](int round) mutable {
    for (std::size_t i = 0; i < matches; ++i) body(static_cast<std::size_t>(round) * matches + i);
  };
}

/// Prompts of 64 one-page nodes in a tree of `range(0)` nodes. Prompts that were matched before or, if `range(1)` is 0,
/// are matched for the first time (where there are more of them than are matched).
void match_in_tree_of(benchmark::State& state) {
  constexpr std::size_t pages = 64;
  Prompts prompts(static_cast<std::size_t>(state.range(0)) / pages, pages * page, pages);
  if (state.range(1) != 0) prompts.match_all();
  const Chains chains(prompts.keys);
  const auto result = report(state,
                             {{"match", each_prompt(pages, [&](std::size_t i) { prompts.match(i); })},
                              {"chain", each_prompt(pages, [&](std::size_t i) { chains.find(prompts.key(i)); })}},
                             0, rounds);
  state.counters["ns_per_node"] = result.ours().median_ns / double{nodes_per_run};
}

/// The time of the second of two runs over different prompts: those of a small tree lie in the caches then, whatever
/// ran in between, and those of a large one do not.
double second_time_ns(const Contender& contender, int round) {
  contender.run(2 * round);
  return wall_time_ns(contender, 2 * round + 1);
}

/// Prompts of `range(0)` one-page nodes that were matched before, in a tree of 10^6 nodes against one of 1,000 or of
/// one prompt; and the same for the least work of a match (Lines).
void match_growth(benchmark::State& state) {
  const auto pages = static_cast<std::size_t>(state.range(0));
  Prompts large(many / pages, pages * page, pages);
  Prompts small(std::max<std::size_t>(1, 1000 / pages), pages * page, pages);
  large.match_all();
  small.match_all();
  Lines large_lines(large.keys);
  Lines small_lines(small.keys);
  const auto match = [&](Prompts& prompts) { return each_prompt(pages, [&](std::size_t i) { prompts.match(i); }); };
  const auto read = [&](Lines& lines, Prompts& prompts) {
    return each_prompt(pages, [&](std::size_t i) { lines.match(prompts.key(i), prompts.kv_out); });
  };
  const auto result = report(state,
                             {{"match", match(large)},
                              {"small_match", match(small)},
                              {"lines", read(large_lines, large)},
                              {"small_lines", read(small_lines, small)}},
                             0, rounds, second_time_ns);
  for (std::size_t i = 0; i < result.names.size(); ++i)
    state.counters[result.names[i] + "_ns_per_node"] = result.timings[i].median_ns / double{nodes_per_run};
}

constexpr int batch = 4000;
static_assert(many % batch == 0);

/// An index-linked list, most recent first, with an anchor behind the last entry.
template <std::size_t entry_bytes>
struct BareList {
  struct alignas(entry_bytes) Link {
    std::uint32_t previous, next;
  };
  explicit BareList(const std::vector<std::uint32_t>& order) : links(order.size() + 1) {
    anchor = static_cast<std::uint32_t>(order.size());
    links[anchor] = {anchor, anchor};
    for (const std::uint32_t entry : order) push_front(entry);
  }
  void unlink(std::uint32_t entry) {
    links[links[entry].previous].next = links[entry].next;
    links[links[entry].next].previous = links[entry].previous;
  }
  void push_front(std::uint32_t entry) {
    links[entry] = {anchor, links[anchor].next};
    links[links[anchor].next].previous = entry;
    links[anchor].next = entry;
  }
  Table<Link> links;
  std::uint32_t anchor;
};

/// One-page leaves, used in random order; `locked` of 100 are locked. With `states`, each has one.
struct Leaves {
  explicit Leaves(std::uint32_t count, std::uint32_t locked = 0, EvictionOrder eviction = EvictionOrder::lru,
                  bool states = false)
      : tree({.page_size = page_size,
              .slots = states ? static_cast<std::int32_t>(count) : 0,
              .eviction = eviction,
              .reserve_nodes = count + 8,
              .reserve_tokens = (count + 8) * page}),
        order(count),
        with_states(states) {
    for (std::uint32_t i = 0; i < count; ++i) insert_one();
    for (const NodeInfo& node : tree.nodes()) ids.push_back(node.id);
    std::iota(order.begin(), order.end(), 0U);
    std::ranges::shuffle(order, random);
    for (const std::uint32_t node : order) tree.touch(ids[node]);
    for (std::uint32_t i = 0; i < count; ++i)
      if (i % 100 < locked) locks.push_back(tree.lock(ids[order[i]]));
    next = 0;
  }
  void insert_one() {
    for (std::size_t i = 0; i < page; ++i) key[i] = static_cast<Token>(random() & 0x1FFFF);
    SlotId slot;
    if (with_states) {
      if (!tree.allocate_slots({&slot, 1})) std::abort();
      tree.tag_slot(slot, tree.state_tag(key));
    }
    tree.insert({.tokens = key, .kv = kv, .slot = slot}, freed);
  }
  void evict_and_insert() {
    freed.clear();
    if (tree.evict({.tokens = 1}, freed).tokens != page_size) std::abort();
    insert_one();
  }
  std::mt19937_64 random{7};
  PrefixTree tree;
  std::vector<std::uint32_t> order;
  std::vector<NodeId> ids;
  std::vector<PrefixLock> locks;
  Key key = Key(page);
  std::vector<KvIndex> kv = std::vector<KvIndex>(page, 0);
  Freed freed;
  std::size_t next = 0;
  bool with_states = false;
};

/// As many instructions as PrefixTree::touch has beyond the work on a list of nodes: it checks the id, counts the path
/// and stores a tick.
[[gnu::always_inline]] inline void idle_as_long_as_touch() {
  asm volatile(".rept 50\n nop\n .endr");
}

/// Against a list of bare 8-byte links, and one whose links lie in nodes of one cache line as a tree's would. One touch
/// a call costs more than that, not because of further misses, but because fewer of them overlap: a core looks only a
/// limited number of instructions ahead. The list of nodes with no-ops between its steps shows it. Touches of many
/// nodes a call are fetched ahead.
void use(benchmark::State& state) {
  Leaves leaves(many);
  BareList<8> list(leaves.order);
  BareList<64> node_list(leaves.order);
  std::vector<std::uint32_t> uses = leaves.order;
  std::ranges::shuffle(uses, leaves.random);
  std::vector<NodeId> ids;
  for (const std::uint32_t entry : uses) ids.push_back(leaves.ids[entry]);
  const auto begin = [&](int round) { return static_cast<std::size_t>(round) * batch % uses.size(); };
  const auto on_list = [&](auto& links, auto&& between) {
    return [&](int round) {
      for (const std::uint32_t entry : std::span(uses).subspan(begin(round), batch)) {
        between();
        links.unlink(entry);
        links.push_front(entry);
      }
    };
  };
  const auto touch = [&](int round) {
    for (const NodeId node : std::span(ids).subspan(begin(round), batch)) leaves.tree.touch(node);
  };
  constexpr std::size_t at_once = 64;  // the requests of a step
  const auto touch_many = [&](int round) {
    for (std::size_t done = 0; done < batch; done += at_once)
      leaves.tree.touch(std::span(ids).subspan(begin(round) + done, std::min(at_once, batch - done)));
  };
  const auto nothing = [] {};
  report(state,
         {{"touch", touch},
          {"touch_64_at_once", touch_many},
          {"list", on_list(list, nothing)},
          {"list_of_nodes", on_list(node_list, nothing)},
          {"list_of_nodes_idle", on_list(node_list, idle_as_long_as_touch)}},
         0, rounds);
  state.counters["bytes_per_node"] = static_cast<double>(leaves.tree.bookkeeping_bytes()) / many;
}

/// A run is shorter than a time slice: on a busy machine the longer run would be cut off more often.
constexpr int exchanges = 250;

auto exchange(Leaves& leaves) {
  return [&leaves](int) {
    for (int i = 0; i < exchanges; ++i) leaves.evict_and_insert();
  };
}

/// With a state at each leaf, so that a policy that learns has something to rank.
void evict_one_insert_one_with_states(benchmark::State& state) {
  Leaves hix(many, 0, EvictionOrder::hix, true);
  Leaves lru(many, 0, EvictionOrder::lru, true);
  const Comparison result = report(state, {{"hix", exchange(hix)}, {"lru", exchange(lru)}}, 0, rounds);
  for (std::size_t i = 0; i < result.names.size(); ++i)
    state.counters[result.names[i] + "_ns_per_exchange"] = result.timings[i].median_ns / double{exchanges};
}

void evict_one_insert_one(benchmark::State& state) {
  Leaves leaves(many);
  Leaves locked(many, 99);
  BareList<8> list(leaves.order);
  std::mt19937_64 random(9);
  FlatMap<std::uint64_t, std::uint32_t> map;
  map.reserve(many);
  Table<std::uint64_t> hashes(many);
  Key key(page);
  const auto insert = [&](std::uint32_t entry) {
    for (Token& token : key) token = static_cast<Token>(random() & 0x1FFFF);
    hashes[entry] = page_hash(0, key.data());
    map[hashes[entry]] = entry;
  };
  for (std::uint32_t entry = 0; entry < many; ++entry) insert(entry);
  const auto bare = [&](int) {
    for (int i = 0; i < exchanges; ++i) {
      const std::uint32_t oldest = list.links[list.anchor].previous;
      list.unlink(oldest);
      map.erase(hashes[oldest]);
      insert(oldest);
      list.push_front(oldest);
    }
  };
  report(state, {{"tree", exchange(leaves)}, {"tree_99_locked", exchange(locked)}, {"bare", bare}}, 0, 101);
}

BENCHMARK(match_in_8_edges)->Arg(1000)->Arg(many)->Iterations(1)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(match_in_pages)->Iterations(1)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(match_in_tree_of)
    ->ArgNames({"nodes", "matched_before"})
    ->ArgsProduct({{1000, 10'000, 100'000, many}, {1}})
    ->Args({many, 0})
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(match_growth)
    ->ArgName("prompt_nodes")
    ->Arg(64)
    ->Arg(2048)
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(use)->Iterations(1)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(evict_one_insert_one)->Iterations(1)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(evict_one_insert_one_with_states)->Iterations(1)->UseManualTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace stateport::perf

BENCHMARK_MAIN();
