// SPDX-License-Identifier: Apache-2.0
// Numbers in comments are those of the rules that the golden files test.
#include "tree/radix_nodes.hpp"

#include <stateport/core/model/error.hpp>

#include <xxhash.h>

#include <algorithm>
#include <cstring>

namespace stateport::detail {
namespace {

bool same_page(const Token* a, const Token* b, std::int32_t page_size) noexcept {
  return std::memcmp(a, b, sizeof(Token) * static_cast<std::size_t>(page_size)) == 0;
}

/// The number of leading pages, of `pages`, that are the same.
std::uint32_t common_pages(const Token* a, const Token* b, std::uint32_t pages, std::int32_t page_size) noexcept {
  // memcmp tells that a block differs, not where: large blocks first, then pages inside the one that differs.
  constexpr std::uint32_t block_tokens = 2048;
  const auto page = static_cast<std::size_t>(page_size);
  const auto block_pages = static_cast<std::uint32_t>(std::max<std::size_t>(1, block_tokens / page));
  std::uint32_t common = 0;
  while (common < pages) {
    const std::uint32_t next = std::min(block_pages, pages - common);
    if (std::memcmp(a + common * page, b + common * page, sizeof(Token) * next * page) != 0) break;
    common += next;
  }
  while (common < pages && same_page(a + common * page, b + common * page, page_size)) ++common;
  return common;
}

}  // namespace

RadixNodes::RadixNodes(const PrefixTreeOptions& options, bool keeps_ends, std::size_t pages_max)
    : page_size_(options.page_size),
      hash_seed_(options.hash_seed),
      arena_(options.page_size, options.reserve_tokens / static_cast<std::size_t>(options.page_size), pages_max),
      names_(options.hash_seed),
      keeps_ends_(keeps_ends) {}

void RadixNodes::reserve(std::size_t nodes) {
  nodes_.reserve(nodes);
  children_.reserve(nodes);
  names_.reserve(nodes);
  if (keeps_ends_) ends_.resize(nodes, 0);
  capacity_ = nodes;
  if (!nodes_.empty()) return;
  nodes_.emplace_back();
  nodes_[root].full_lock = 1;
  nodes_[root].older = nodes_[root].newer = root;
}

std::uint32_t RadixNodes::take() noexcept {
  ++live_;
  if (free_head_ == none) {
    nodes_.emplace_back();
    return static_cast<std::uint32_t>(nodes_.size()) - 1;
  }
  const std::uint32_t node = free_head_;
  free_head_ = nodes_[node].parent;
  const std::uint32_t generation = nodes_[node].generation;
  nodes_[node] = {};
  nodes_[node].generation = generation;
  return node;
}

std::uint32_t RadixNodes::child_hash(std::uint32_t parent, std::uint32_t name_space, const Token* page) const noexcept {
  // The page is hashed without the parent: its hash does not wait for the previous step of the walk.
  const std::uint64_t tokens =
      XXH3_64bits_withSeed(page, sizeof(Token) * static_cast<std::size_t>(page_size_), hash_seed_);
  const std::uint64_t place = std::uint64_t{name_space} << 32 | parent;
  std::uint64_t mixed = (tokens ^ place * 0x9E3779B97F4A7C15U) * 0xD6E8FEB86659FD93U;
  mixed ^= mixed >> 32;
  return static_cast<std::uint32_t>((mixed * 0xD6E8FEB86659FD93U) >> 32);
}

std::uint32_t RadixNodes::child_hash(std::uint32_t node) const noexcept {
  const RadixNode& entry = nodes_[node];
  return child_hash(entry.parent, entry.name_space, arena_.tokens(entry.first_page));
}

std::uint32_t RadixNodes::find_child(RadixWalk& walk, std::uint32_t name_space, const Token* page,
                                     std::uint32_t hint) const noexcept {
  const auto is_child = [&](std::uint32_t index) {
    const RadixNode& node = nodes_[index];
    return node.parent == walk.node && node.name_space == name_space &&
           same_page(arena_.tokens(node.first_page), page, page_size_);
  };
  if (hint != none && is_child(hint)) return hint;  // never a free node: its parent, if any, is a free node too
  const std::uint32_t hash = child_hash(walk.node, name_space, page);
  const std::uint32_t child = children_.find(hash, is_child);
  if (child == none) walk.missing_child = hash;
  return child;
}

void RadixNodes::look_ahead(std::uint32_t node, std::uint32_t depth, PathAhead& ahead) const noexcept {
  const auto note = [&](std::uint32_t at, std::uint32_t hint) {
    ahead.note(at, hint);
    if (hint != none) prefetch_early(&nodes_[hint]);
  };
  if (!listed(node)) {
    const std::uint32_t near = PathAhead::near(depth);
    if (ahead.at(near) == none && nodes_[node].older != none) note(near, nodes_[node].older - unlisted);
    note(PathAhead::far(depth), nodes_[node].newer);
  }
  // The node that was fetched some levels before is here by now: it tells where its pages are.
  const std::uint32_t soon = ahead.at(depth + PathAhead::page_levels);
  if (soon == none) return;
  prefetch(arena_.tokens(nodes_[soon].first_page));
  prefetch(arena_.kv(nodes_[soon].first_page));
}

RadixWalk RadixNodes::walk(const Token* tokens, std::uint32_t pages, std::uint32_t name_space,
                           PathWalked& path) const noexcept {
  constexpr std::uint32_t fetched_pages = 8;  // of the key, ahead of the walk: it may be as cold as the nodes
  RadixWalk walk;
  PathAhead ahead;
  const auto page = static_cast<std::size_t>(page_size_);
  while (walk.pages < pages && name_space != NamespaceTable::none) {
    const Token* rest = tokens + walk.pages * page;
    prefetch(tokens + std::min(walk.pages + fetched_pages, pages) * page);
    const std::uint32_t hint = ahead.at(walk.depth + 1);
    const std::uint32_t child = find_child(walk, name_space, rest, hint);
    if (child == none) break;
    if (hint != none && child != hint) ahead = {};  // the hints are of another path
    const RadixNode& node = nodes_[child];
    std::uint32_t common = 1;
    if (node.pages > 1)
      common += common_pages(arena_.tokens(node.first_page) + page, rest + page,
                             std::min(node.pages, pages - walk.pages) - 1, page_size_);
    walk.pages += common;
    if (common < node.pages) {
      walk.cut_node = child;
      walk.cut_pages = common;
      break;
    }
    walk.node = child;
    ++walk.depth;
    path.note(walk.depth, child);
    look_ahead(child, walk.depth, ahead);
    if (node.slot >= 0) {
      walk.answer = child;
      walk.answer_depth = walk.depth;
      walk.answer_pages = walk.pages;
      walk.lost_state = false;
    } else if (node.lost_state()) {
      walk.lost_state = true;
    }
  }
  return walk;
}

std::uint32_t RadixNodes::add_leaf(std::uint32_t parent, std::uint32_t name_space, std::optional<std::uint32_t> hash,
                                   std::span<const Token> tokens, std::span<const KvIndex> kv) noexcept {
  const std::uint32_t leaf = take();
  RadixNode& node = nodes_[leaf];
  const TokenArena::Run run =
      arena_.allocate(static_cast<std::uint32_t>(tokens.size() / static_cast<std::size_t>(page_size_)));
  node.parent = parent;
  node.pages = run.pages;
  node.name_space = name_space;
  node.first_page = run.first_page;
  const auto count = static_cast<std::size_t>(tokens_of(run.pages));
  std::ranges::copy(tokens.first(count), arena_.tokens(node.first_page));
  std::ranges::copy(kv.first(count), arena_.kv(node.first_page));
  children_.insert(hash ? *hash : child_hash(leaf), leaf);
  ++nodes_[parent].children;
  if (parent == root) names_.add_child(name_space);
  if (keeps_ends_) ends_[leaf] = ends_[parent] + node.pages;
  return leaf;
}

std::uint32_t RadixNodes::split(std::uint32_t node, std::uint32_t pages) noexcept {
  const std::uint32_t upper_index = take();
  RadixNode& upper = nodes_[upper_index];
  RadixNode& lower = nodes_[node];
  // A state is valid at one position: it stays with the lower part, which keeps its identity (1, 17).
  upper.parent = lower.parent;
  upper.first_page = lower.first_page;
  upper.pages = pages;
  upper.children = 1;
  upper.name_space = lower.name_space;
  upper.full_lock = lower.full_lock;
  upper.created = lower.created;
  upper.hits = lower.hits;
  upper.priority = lower.priority;
  children_.assign(child_hash(node), upper_index, [&](std::uint32_t child) { return child == node; });
  lower.parent = upper_index;
  lower.first_page += pages;
  lower.pages -= pages;
  children_.insert(child_hash(node), node);
  if (keeps_ends_) ends_[upper_index] = ends_[upper.parent] + pages;
  return upper_index;
}

void RadixNodes::fetch_pages(std::uint32_t node) const noexcept {
  const std::uint32_t page = nodes_[node].first_page;
  prefetch(arena_.kv(page));
  prefetch(arena_.tokens(page));
  prefetch(arena_.run_mark(page));
}

std::uint32_t RadixNodes::prepare_removal(std::uint32_t leaf) const noexcept {
  const std::uint32_t hash = child_hash(leaf);
  prefetch(children_.bucket(hash));
  return hash;
}

void RadixNodes::remove(std::uint32_t leaf, std::uint32_t prepared) noexcept {
  RadixNode& entry = nodes_[leaf];
  children_.erase(prepared, leaf);
  arena_.release(entry.first_page, entry.pages);
  --nodes_[entry.parent].children;
  if (entry.parent == root) names_.drop_child(entry.name_space);
  const std::uint32_t generation = entry.generation + 1;
  entry = {};
  entry.generation = generation;
  entry.parent = free_head_;
  free_head_ = leaf;
  --live_;
}

void RadixNodes::clear() noexcept {
  free_head_ = none;
  for (auto node = static_cast<std::uint32_t>(nodes_.size()) - 1; node > 0; --node) {
    const std::uint32_t generation = nodes_[node].generation + 1;
    nodes_[node] = {};
    nodes_[node].generation = generation;
    nodes_[node].parent = free_head_;
    free_head_ = node;
  }
  nodes_[root].children = 0;
  nodes_[root].older = nodes_[root].newer = root;
  live_ = 0;
  arena_.clear();
  children_.clear();
  names_.clear();
}

std::vector<std::uint32_t> RadixNodes::ends() const {
  std::vector<std::uint32_t> ends(nodes_.size(), 0);
  std::vector<std::uint32_t> path;
  for (std::uint32_t index = 1; index < nodes_.size(); ++index) {
    if (nodes_[index].pages == 0) continue;
    for (std::uint32_t at = index; ends[at] == 0 && at != root; at = nodes_[at].parent) path.push_back(at);
    for (; !path.empty(); path.pop_back())
      ends[path.back()] = ends[nodes_[path.back()].parent] + nodes_[path.back()].pages;
  }
  return ends;
}

void RadixNodes::check_node(std::uint32_t index) const {
  const RadixNode& node = nodes_[index];
  const RadixNode& parent = nodes_[node.parent];
  const Token* first_page = arena_.tokens(node.first_page);
  require_invariant(node.parent < nodes_.size() && (node.parent == root || parent.pages > 0), structure,
                    "a node's parent is not in the tree");
  require_invariant(node.parent == root || node.name_space == parent.name_space, structure,
                    "a node is in another namespace than its parent");
  const std::uint32_t found = children_.find(child_hash(index), [&](std::uint32_t other) {
    return nodes_[other].parent == node.parent && nodes_[other].name_space == node.name_space &&
           same_page(arena_.tokens(nodes_[other].first_page), first_page, page_size_);
  });
  require_invariant(found == index, structure, "a node is not found, or a sibling begins with the same page");
  require_invariant(node.newer < nodes_.size() || node.newer == none, structure, "a node hints at no node");
  require_invariant(node.older == none || (node.older & ~unlisted) < nodes_.size(), structure,
                    "a node hints at no next node");
}

void RadixNodes::check_links() const {
  std::size_t free_nodes = 0;
  for (std::uint32_t index = free_head_; index != none; index = nodes_[index].parent, ++free_nodes)
    require_invariant(nodes_[index].pages == 0 && free_nodes <= nodes_.size(), structure, "a node in use is free");
  require_invariant(free_nodes + live_ + 1 == nodes_.size(), structure, "a node is neither in use nor free");
  require_invariant(live_ == children_.count(), structure, "the number of nodes is wrong");
  children_.check_invariants([this](std::uint32_t node) { return child_hash(node); });
  if (!keeps_ends_) return;
  const std::vector<std::uint32_t> recounted = ends();
  for (std::uint32_t index = 1; index < nodes_.size(); ++index)
    require_invariant(nodes_[index].pages == 0 || ends_[index] == recounted[index], structure,
                      "a node ends elsewhere than its path");
}

void RadixNodes::check_invariants() const {
  std::vector<std::uint32_t> children(nodes_.size(), 0);
  std::vector<bool> used_pages(arena_.capacity_pages(), false);
  std::vector<std::uint32_t> root_children(names_.size(), 0);
  check_links();
  for (std::uint32_t index = 1; index < nodes_.size(); ++index) {
    const RadixNode& node = nodes_[index];
    if (node.pages == 0) continue;
    check_node(index);
    ++children[node.parent];
    if (node.parent == root) ++root_children[node.name_space];
    for (std::uint32_t page = node.first_page; page < node.first_page + node.pages; ++page) {
      require_invariant(!used_pages[page], structure, "two nodes own a page of the arena");
      used_pages[page] = true;
    }
  }
  for (std::uint32_t index = 0; index < nodes_.size(); ++index) {
    const RadixNode& node = nodes_[index];
    require_invariant(children[index] == node.children, structure, "a node counts other children");
  }
  for (std::uint32_t name = 0; name < names_.size(); ++name) {
    require_invariant(root_children[name] == names_.children(name), structure, "a namespace counts other children");
    require_invariant(!names_.is_idle(name), structure, "a namespace without children is kept");
  }
  arena_.check_invariants(used_pages);
}

}  // namespace stateport::detail
