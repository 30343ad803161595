// SPDX-License-Identifier: Apache-2.0
#include "serve/radix_kv.hpp"

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>

#include "serve/request_options.hpp"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

namespace stateport::detail {
namespace {

/// A tree of tokens knows no media: prompts with media share prefixes with the same media at the same positions.
Namespace with_media(const PromptNames& names) {
  Namespace result = names.name_space;
  for (const MediaKey& media : names.media) {
    const std::int64_t at = media.first_token;
    const NameKey position(std::string_view(reinterpret_cast<const char*>(&at), sizeof at));
    // A prompt without an adapter differs from one whose adapter has no name.
    const NameKey before = result.extra_key ? NameKey::both(*result.extra_key, position) : position;
    result.extra_key = NameKey::both(before, media.id);
  }
  return result;
}

constexpr std::uint64_t number_of(const NamespaceTag& tag) noexcept {
  return std::uint64_t{tag.extra_key} << 32 | tag.salt;
}
constexpr NamespaceTag tag_of(std::uint64_t number) noexcept {
  return {.extra_key = static_cast<std::uint32_t>(number >> 32), .salt = static_cast<std::uint32_t>(number)};
}

// Owners are null where tenants have no shares.

void note_taken(TenantOwners* owners, SlotId state) {
  if (owners != nullptr) owners->take(state.index());
}

/// Whole pages of KV are free.
void note_freed(RequestBook& book, std::span<const KvIndex> kv) {
  const std::int32_t page_tokens = book.options.block_size_tokens;
  const auto page = static_cast<std::size_t>(page_tokens);
  for (std::size_t i = 0; book.tenants && i < kv.size(); i += page)
    book.tenants->kv().give(static_cast<std::size_t>(kv[i]) / page);
  for (std::size_t i = 0; book.sessions && i < kv.size(); i += page) book.sessions->give_kv(kv[i] / page_tokens);
}

/// The asking request has new pages.
void note_taken(RequestBook& book, std::span<const KvIndex> kv) {
  const std::int32_t page_tokens = book.options.block_size_tokens;
  const auto page = static_cast<std::size_t>(page_tokens);
  for (std::size_t i = 0; book.tenants && i < kv.size(); i += page)
    book.tenants->kv().take(static_cast<std::size_t>(kv[i]) / page);
  for (std::size_t i = 0; book.sessions && i < kv.size(); i += page) book.sessions->take_kv(kv[i] / page_tokens);
}

/// The request reads these pages of the tree.
void note_shared(RequestBook& book, RequestId request, std::span<const KvIndex> kv) {
  const std::int32_t page_tokens = book.options.block_size_tokens;
  for (std::size_t i = 0; book.sessions && i < kv.size(); i += static_cast<std::size_t>(page_tokens))
    book.note_shared(request, kv[i] / page_tokens);
}

/// Evicts demoted contents (SessionBook) alone.
EvictResult evict_demoted(RequestBook& book, PrefixTree& tree, const EvictDemand& demand, Freed& freed) {
  const auto is_demoted = [&](KvIndex kv) { return book.sessions->is_demoted_kv(kv / book.options.block_size_tokens); };
  return tree.evict(demand, freed, std::ref(is_demoted));  // a reference needs no memory
}

/// The tree has to report its contents.
bool reports(const RequestCacheOptions& options) {
  return options.events || options.tiers.enabled();
}

PrefixTree::Options tree_options(RequestBook& book, std::int32_t states, std::int32_t grid_tokens,
                                 const std::function<void(const KvEvent&)>& on_kv_event) {
  const RequestCacheOptions& options = book.options;
  PrefixTree::Options tree{.page_size = options.block_size_tokens,
                           .slots = states,
                           .chunk_size = grid_tokens,
                           .layout_fingerprint = book.slots.layout_fingerprint,
                           .eviction = options.eviction,
                           .eviction_options = options.eviction_options,
                           .memory = options.memory,
                           .position_tokens = options.position_tokens,
                           .kv_indices = options.kv_tokens + options.block_size_tokens,
                           .hash_seed = options.hash_seed,
                           .kv_event_hash = options.hash,
                           .kv_event_hash_seed = options.hash_seed,
                           .owners = book.kv_owners()};
  if (reports(options)) tree.on_kv_event = on_kv_event;
  return tree;
}

}  // namespace

RadixKv::RadixKv(RequestBook& book, std::int32_t states, std::int32_t grid_tokens, StatePlaces* owner)
    : book_(book),
      options_(book.options),
      owner_(owner),
      kv_owners_(book.kv_owners()),
      state_owners_(owner == nullptr ? book.state_owners() : nullptr),
      hasher_(options_),
      tree_(tree_options(book, states, grid_tokens, [this](const KvEvent& event) { on_kv_event(event); })),
      kv_(options_.kv_tokens, options_.block_size_tokens),
      requests_(index_rows(options_)),
      places_(static_cast<std::size_t>(states) * book.groups),
      prefix_of_(static_cast<std::size_t>(states)),
      is_reported_(prefix_of_.size(), 0) {
  freed_.slots.reserve(prefix_of_.size());
  freed_.kv.reserve(static_cast<std::size_t>(kv_.capacity()));
  for (Request& request : requests_) {
    request.row.reserve(request_blocks(options_) * static_cast<std::size_t>(options_.block_size_tokens));
    if (reports(options_) || options_.share_running.least_tokens > 0)
      request.hashes = GrowingHashes(request_blocks(options_));
  }
}

/// Contents that left the tree are free again.
void RadixKv::reclaim(const Freed& freed) {
  kv_.release(freed.kv);
  note_freed(book_, freed.kv);
  for (const SlotId state : freed.slots) {
    if (state_owners_ != nullptr) state_owners_->give(state.index());
    for (std::size_t g = 0; book_.sessions && g < book_.groups; ++g) book_.sessions->give_state(g, state);
    for (std::size_t g = 0; book_.checks && g < book_.groups; ++g) book_.checks->lost(g, places(state)[g]);
    if (!book_.forgetting) {
      ++evicted_states_;
      book_.ages.lost(state, book_.now_s);
    }
    if (std::exchange(is_reported_[state.index()], std::uint8_t{0}) != 0)
      for (std::size_t g = 0; g < book_.groups; ++g)
        book_.news.state_removed(static_cast<std::int32_t>(g), prefix_of_[state.index()]);
    if (owner_ != nullptr) owner_->on_freed(places(state));
  }
}

void RadixKv::return_state(SlotId state) {
  tree_.release_slots({&state, 1});
  if (state_owners_ != nullptr && state_owners_->of(state.index()) != TenantLedger::nobody)
    state_owners_->give(state.index());
}

bool RadixKv::evict(EvictDemand demand) {
  if (kv_owners_ != nullptr)
    demand = {.tokens = std::min<std::int64_t>(demand.tokens, 1),
              .states = std::min<std::int64_t>(demand.states, 1),
              .bytes = std::min<std::int64_t>(demand.bytes, 1)};
  EvictResult demoted;
  freed_.clear();
  if (book_.sessions && book_.sessions->demotes()) {
    demoted = evict_demoted(book_, tree_, demand, freed_);
    demand.tokens -= std::min(demoted.tokens, demand.tokens);
    demand.states -= std::min(demoted.states, demand.states);
    demand.bytes -= std::min(options_.memory.of(demoted.tokens, demoted.states), demand.bytes);
  }
  const EvictResult evicted = tree_.evict(demand, freed_);
  evicted_kv_tokens_ += demoted.tokens + evicted.tokens;
  reclaim(freed_);
  return evicted != EvictResult{} || demoted != EvictResult{};
}

SlotId RadixKv::take_state() {
  SlotId state;
  bool found = tree_.allocate_slots({&state, 1});
  if (!found) {
    book_.note_lack(MemoryPart::states, 1);
    evict({.states = 1});
    found = tree_.allocate_slots({&state, 1});
  }
  if (!found) return SlotId{};
  book_.note_need(MemoryPart::states, 1);
  note_taken(state_owners_, state);
  return state;
}

bool RadixKv::has_state(RequestId id, std::int64_t tokens) const {
  return tree_.peek(book_.record(id).tokens.first(tokens), requests_[id.index()].name_space).tokens == tokens;
}

std::optional<OpenedPrompt> RadixKv::open(RequestId id, const PromptNames& names, SlotId* live) {
  Request& request = requests_[id.index()];
  const RequestRecord& prompt = book_.record(id);
  request.name_space = with_media(names);
  tree_.set_time(book_.now_s);
  const auto usable = prompt.tokens.first(prompt.prompt_tokens - 1);
  request.row.resize(prompt.tokens.size());
  freed_.clear();
  if (live != nullptr && tree_.slots().free_slots() == 0) {
    book_.note_lack(MemoryPart::states, 1);
    if (book_.sessions && book_.sessions->demotes()) {
      const PrefixLock hit = tree_.lock(tree_.peek(usable, request.name_space).node);
      static_cast<void>(evict_demoted(book_, tree_, {.states = 1}, freed_));
    }
  }
  request.hit =
      live != nullptr
          ? tree_.match_with_live_slot(usable, request.name_space, request.row, {}, freed_, prompt.prompt_tokens)
          : tree_.match(usable, request.name_space, request.row, Lookup::request, prompt.prompt_tokens);
  evicted_kv_tokens_ += std::ssize(freed_.kv);
  reclaim(freed_);
  request.lock = tree_.lock(request.hit.node);
  if (live != nullptr) {
    if (request.hit.live_slot.valid()) note_taken(state_owners_, request.hit.live_slot);
    *live = request.hit.live_slot.valid() ? request.hit.live_slot : take_state();
    if (!live->valid()) {
      request.lock.release();
      request.row.clear();
      return std::nullopt;
    }
  }
  request.hashes.clear();
  return opened_at_hit(id);
}

std::optional<OpenedPrompt> RadixKv::refresh(RequestId id) {
  Request& request = requests_[id.index()];
  const std::int64_t prompt = book_.record(id).prompt_tokens;
  const auto usable = book_.record(id).tokens.first(prompt - 1);
  const PrefixMatch found = tree_.peek(usable, request.name_space);
  if (!book_.opened_of(id).is_less_than(found.tokens, found.walked_tokens)) return std::nullopt;
  release_kv(id, request.held_tokens);
  request.row.resize(static_cast<std::size_t>(prompt));
  // A policy that learns hears of a deeper hit as of one by a start.
  const bool is_deeper = found.tokens > book_.opened_of(id).reused_tokens;
  request.hit =
      tree_.match(usable, request.name_space, request.row, is_deeper ? Lookup::request : Lookup::again, prompt);
  request.lock = tree_.lock(request.hit.node);
  return opened_at_hit(id);
}

/// The request holds its hit, and the KV of the hit stands in its row.
OpenedPrompt RadixKv::opened_at_hit(RequestId id) {
  Request& request = requests_[id.index()];
  request.row.resize(static_cast<std::size_t>(request.hit.tokens));
  request.held_tokens = request.hit.tokens;
  note_shared(book_, id, request.row);
  for (std::size_t g = 0; request.hit.slot.valid() && g < book_.groups; ++g)
    book_.note_shared_state(id, g, request.hit.slot);
  OpenedPrompt opened{.reused_tokens = request.hit.tokens,
                      .cached_tokens = request.hit.walked_tokens,
                      .lost = request.hit.lost,
                      .hit = request.hit.slot};
  // The forward needs a token, so the last page of a prompt of whole pages was not looked up: it may be cached all the
  // same.
  const std::int64_t prompt = book_.record(id).prompt_tokens;
  if (opened.cached_tokens + options_.block_size_tokens != prompt || opened.lost == LostHit::locked_pool) return opened;
  const PrefixMatch all = tree_.peek(book_.record(id).tokens.first(prompt), request.name_space);
  if (all.walked_tokens == opened.cached_tokens) return opened;
  opened.cached_tokens = all.walked_tokens;
  opened.lost = all.tokens > opened.reused_tokens ? LostHit::too_few_tokens : all.lost;
  return opened;
}

/// Orders that learn hear of no prompt of a fork: it was not looked up.
void RadixKv::fork(RequestId id, RequestId point, bool takes_over) {
  Request& from = requests_[point.index()];
  Request& to = requests_[id.index()];
  const std::int64_t pages = floor_to(book_.record(point).computed, options_.block_size_tokens);
  if (takes_over) {
    std::swap(from, to);
  } else {
    if (pages > from.held_tokens) static_cast<void>(donate(point, {}, {}, pages, {.spare = true}));
    to.row.assign(from.row.begin(), from.row.begin() + pages);
    to.held_tokens = pages;
    to.lock = tree_.lock(from.lock.node());
    to.name_space = from.name_space;
    to.hashes = from.hashes;
  }
  to.hit = {};
  to.hit.tokens = pages;
}

bool RadixKv::reserve(RequestId id, std::int64_t upto) {
  std::vector<KvIndex>& row = requests_[id.index()].row;
  if (upto <= std::ssize(row)) return true;
  const auto wanted = static_cast<std::size_t>(ceil_div(upto, options_.block_size_tokens) * options_.block_size_tokens);
  const std::size_t held = row.size();
  row.resize(wanted);
  const auto fresh = std::span(row).subspan(held);
  const auto take = [&] {
    if (!kv_.allocate(fresh)) return false;
    note_taken(book_, fresh);
    book_.note_need(MemoryPart::kv, std::ssize(fresh) / options_.block_size_tokens);
    return true;
  };
  if (take()) return true;
  book_.note_lack(MemoryPart::kv, (std::ssize(fresh) - kv_.available()) / options_.block_size_tokens);
  if (book_.slots.arena.bytes > 0) {
    // Whatever is worth the least, unless that cannot be enough: then memory has to come from the states first.
    const bool can_be_enough = std::ssize(fresh) <= kv_.available() + tree_.sizes().evictable_tokens;
    while (can_be_enough && std::ssize(fresh) > kv_.available() && evict_least()) {
    }
  } else {
    while (evict({.tokens = std::ssize(fresh)}) && kv_owners_ != nullptr && std::ssize(fresh) > kv_.available()) {
    }
  }
  if (take()) return true;
  row.resize(held);
  return false;
}

bool RadixKv::donate(RequestId id, SlotId state, std::span<const SlotId> places, std::int64_t tokens,
                     const Donation& donation) {
  Request& request = requests_[id.index()];
  const auto count = static_cast<std::size_t>(tokens);
  const auto key = book_.record(id).tokens.first(tokens);
  const auto known_tokens = static_cast<std::int64_t>(std::ssize(book_.record(id).tokens.all()));
  if (state.valid()) tree_.tag_slot(state, tree_.state_tag(key, request.name_space));
  inserted_ = key;
  inserted_kv_ = std::span(request.row).first(count);
  inserted_tag_ = book_.record(id).tag;
  freed_.clear();
  const InsertResult inserted = tree_.insert(
      {.tokens = key,
       .kv = inserted_kv_,
       .slot = state,
       .name_space = request.name_space,
       .name_tag = number_of(book_.record(id).tag),
       .prev_tokens = request.held_tokens,
       .chunked = !donation.ends,
       .spare = donation.spare,
       .kv_out = state.valid() ? std::span<KvIndex>{} : std::span(request.row).first(count),
       .prompt = {.tokens = donation.ends ? 0 : known_tokens + 1, .past = request.hit.past, .hint = donation.hint}},
      freed_);
  reclaim(freed_);
  const bool has_state = inserted.state_exists || state.valid();
  const bool is_own = !inserted.state_exists && inserted.prefix_tokens == request.held_tokens;
  if (!donation.ends && !is_own && has_state) hold_path(id, tokens);
  if (!donation.ends && (is_own || !has_state)) {  // the row names the KV that the tree took, or has
    request.lock = tree_.lock(inserted.node);
    request.held_tokens = tokens;
  }
  if (inserted.state_exists || !state.valid()) return false;
  ++book_.published;
  book_.ages.made(state, book_.now_s);
  for (std::size_t g = 0; book_.sessions && g < book_.groups; ++g)
    book_.sessions->take_state(g, state, request.row[count - 1] / options_.block_size_tokens);
  std::ranges::copy(places, places_.begin() + static_cast<std::ptrdiff_t>(state.index() * book_.groups));
  if (book_.news.on())
    prefix_of_[state.index()] =
        hashes_of(id, tokens).prefixes()[static_cast<std::size_t>(tokens / options_.block_size_tokens) - 1];
  for (std::size_t g = 0; book_.checks && g < book_.groups; ++g)
    book_.checks->published(g, places[g], id, prefix_of_[state.index()]);
  if (!book_.news.on()) return true;
  is_reported_[state.index()] = 1;
  for (std::size_t g = 0; g < book_.groups; ++g)
    book_.news.state_stored(static_cast<std::int32_t>(g), prefix_of_[state.index()], tokens, places[g]);
  return true;
}

void RadixKv::hold_path(RequestId id, std::int64_t tokens) {
  Request& request = requests_[id.index()];
  const auto count = static_cast<std::size_t>(tokens);
  const PrefixMatch kept = tree_.match(book_.record(id).tokens.first(tokens), request.name_space,
                                       std::span(request.row).first(count), Lookup::again);
  request.lock = tree_.lock(kept.node);
  request.held_tokens = kept.tokens;
  note_shared(book_, id, std::span(request.row).first(static_cast<std::size_t>(kept.tokens)));
}

void RadixKv::drop_state(RequestId id, NodeId node) {
  const NodeInfo info = tree_.node(node);
  if (!info.slot.valid() || info.state_lock != 1) return;
  requests_[id.index()].lock.release();
  freed_.clear();
  tree_.drop_state(node, freed_);
  reclaim(freed_);
}

const GrowingHashes& RadixKv::hashes_of(RequestId id, std::int64_t tokens) {
  GrowingHashes& hashes = requests_[id.index()].hashes;
  hashes.extend(hasher_, book_.record(id).tokens.first(tokens),
                {.name_space = requests_[id.index()].name_space, .media = {}});
  return hashes;
}

std::int64_t RadixKv::cached_now(RequestId id) const {
  return tree_.peek(book_.record(id).tokens.first(book_.record(id).prompt_tokens), requests_[id.index()].name_space)
      .walked_tokens;
}

/// The pages that the tree has, but for the state of the hit, are taken twice until the load has ended.
bool RadixKv::reserve_load(RequestId id, std::int64_t tokens, std::int64_t cached_tokens,
                           std::vector<std::int32_t>& kv_blocks) {
  Request& request = requests_[id.index()];
  // Since the lookup the tree may have evicted KV behind the hit.
  const std::int64_t cached = std::min(cached_tokens, tokens);
  const PrefixMatch path = tree_.match(book_.record(id).tokens.first(tokens), request.name_space, {}, Lookup::again);
  const NodeId root = tree_.peek({}).node;
  if (cached > (path.kv_node == root ? 0 : tree_.node(path.kv_node).end_tokens)) return false;
  request.cached = tree_.lock(path.kv_node);
  if (!reserve(id, tokens)) {
    request.cached.release();
    return false;
  }
  for (std::int64_t at = cached_tokens; at < tokens; at += options_.block_size_tokens)
    kv_blocks.push_back(request.row[static_cast<std::size_t>(at)] / options_.block_size_tokens);
  return true;
}

SlotId RadixKv::end_load(RequestId id, std::int64_t tokens, bool done) {
  Request& request = requests_[id.index()];
  request.cached.release();
  if (!done) return SlotId{};
  const PromptPast past = request.hit.past;
  request.hit = tree_.peek(book_.record(id).tokens.first(tokens), request.name_space);
  request.hit.past = past;
  return request.hit.slot;
}

/// A policy that learns hears of every end. For the others the last checkpoint of decoding becomes as recent as the
/// end.
void RadixKv::report_end(RequestId id, const ReuseHint& hint, std::int64_t step, bool decoded) {
  const Request& request = requests_[id.index()];
  const bool left_state =
      request.held_tokens > request.hit.tokens || request.held_tokens == floor_to(book_.record(id).computed, step);
  const bool has_state = !node(id).is_root() && tree_.node(node(id)).slot.valid();
  if (!left_state || !has_state || (options_.eviction != EvictionOrder::hix && !decoded)) return;
  freed_.clear();
  tree_.insert({.tokens = book_.record(id).tokens.first(request.held_tokens),
                .kv = std::span(request.row).first(static_cast<std::size_t>(request.held_tokens)),
                .slot = {},
                .name_space = request.name_space,
                .name_tag = number_of(book_.record(id).tag),
                .prev_tokens = request.held_tokens,
                .prompt = {.past = request.hit.past, .hint = hint}},
               freed_);
}

void RadixKv::release_kv(RequestId id, std::int64_t kept) {
  std::vector<KvIndex>& row = requests_[id.index()].row;
  const auto rest = std::span(row).subspan(static_cast<std::size_t>(kept));
  kv_.release(rest);
  note_freed(book_, rest);
  row.clear();
}

void RadixKv::unlock(RequestId id) {
  const NodeId end = node(id);
  requests_[id.index()].lock.release();
  requests_[id.index()].held_tokens = 0;
  if (book_.record(id).stale && !end.is_root()) forget({}, end);
}

void RadixKv::forget(const Forgotten& forgotten, NodeId end) {
  const auto chosen = [&](std::uint64_t number) { return forgotten(tag_of(number)); };
  book_.forgetting = true;  // they are not evicted
  freed_.clear();
  static_cast<void>(tree_.forget(std::ref(chosen), freed_, end));  // a reference needs no memory
  reclaim(freed_);
  book_.forgetting = false;
}

void RadixKv::withdraw(SlotId state) {
  tree_.drop_state(state);
  freed_.clear();
  freed_.slots.push_back(state);
  reclaim(freed_);
}

CacheUsage RadixKv::usage() const noexcept {
  return {.kv_tokens = kv_.capacity() - kv_.available() - kv_.closed(),
          .states = tree_.sizes().total_states(),
          .evicted_kv_tokens = evicted_kv_tokens_,
          .evicted_states = evicted_states_,
          .metadata_bytes = tree_.bookkeeping_bytes()};
}

std::int32_t RadixKv::free_numbers(MemoryPart part) const noexcept {
  if (part == MemoryPart::states) return tree_.slots().free_slots();
  return static_cast<std::int32_t>(kv_.available() / options_.block_size_tokens);
}

bool RadixKv::is_free(MemoryPart part, std::int32_t number) const {
  return part == MemoryPart::kv ? kv_.is_free(number) : tree_.slots().is_free(SlotId{number});
}

void RadixKv::close(MemoryPart part, std::span<const NumberRange> ranges) {
  if (part == MemoryPart::kv) return kv_.close(ranges);
  tree_.close_slots(ranges);
}

void RadixKv::open(MemoryPart part, std::int32_t first, std::int32_t count) {
  if (part == MemoryPart::kv) return kv_.open(first, count);
  tree_.open_slots(first, count);
}

/// A request that has committed a pass needs its own state alone, not the one that it holds in the tree.
bool RadixKv::evict_held_state() {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const RequestId id = book_.records[i].id;
    if (!book_.records[i].running || !book_.records[i].begun) continue;
    const NodeId node = this->node(id);
    if (node.is_root() || !tree_.node(node).slot.valid() || tree_.node(node).state_lock != 1) continue;
    if (book_.tenants && !book_.tenants->is_movable(tree_.node(node).slot)) continue;
    drop_state(id, node);
    requests_[i].lock = tree_.lock(node);
    return true;
  }
  return false;
}

void RadixKv::count_movable(MemoryPart part, std::int32_t count, std::span<std::int32_t> by_extent) {
  if (part == MemoryPart::kv) return tree_.count_unlocked_pages(count, by_extent);
  std::ranges::fill(by_extent, 0);
  const SlotPool& slots = tree_.slots();
  for (std::int32_t i = 0; i < slots.capacity_slots(); ++i)
    by_extent[static_cast<std::size_t>(i / count)] +=
        !slots.is_free(SlotId{i}) && slots.owner(SlotId{i}) != SlotPool::caller && slots.lock_count(SlotId{i}) == 0 &&
        (!book_.tenants || book_.tenants->is_movable(SlotId{i}));
}

void RadixKv::vacate(MemoryPart part, std::vector<SlotCopy>& copies) {
  if (part == MemoryPart::states) {
    freed_.clear();
    tree_.evict_closed_states(freed_);
    return reclaim(freed_);
  }
  const std::int32_t page_size = options_.block_size_tokens;
  const auto new_page = [&](std::int32_t page) {
    if (!kv_.is_closed(page)) return page;
    KvIndex fresh = 0;
    const bool found = kv_.allocate({&fresh, 1});
    require_invariant(found, "RadixKv", "a page finds no memory");
    const KvIndex old = page * page_size;
    kv_.release({&old, 1});
    if (kv_owners_ != nullptr)
      kv_owners_->move(static_cast<std::size_t>(page), static_cast<std::size_t>(fresh / page_size));
    if (book_.sessions) book_.sessions->move_kv(page, fresh / page_size);
    copies.push_back(SlotCopy::whole(page, fresh / page_size));
    return fresh / page_size;
  };
  tree_.move_pages(std::ref(new_page));  // a reference needs no memory
}

void RadixKv::on_kv_event(const KvEvent& event) {
  if (event.kind == KvEvent::Kind::cleared) return;
  if (event.kind == KvEvent::Kind::removed) {
    for (const BlockDigest& block : event.blocks) book_.news.kv_removed(block.prefix());
    return;
  }
  BlockDigest parent = event.parent;
  const std::int64_t page = options_.block_size_tokens;
  std::int64_t tokens = event.tokens.data() - inserted_.data();
  for (const BlockDigest& block : event.blocks) {
    const KvIndex kv = inserted_kv_[static_cast<std::size_t>(tokens)];
    tokens += page;
    book_.news.kv_stored(block.prefix(), parent.prefix(), tokens, static_cast<std::int32_t>(kv / page), inserted_tag_);
    parent = block;
  }
}

void RadixKv::forget_all() {
  freed_.clear();
  tree_.reset(freed_);
  kv_.release(freed_.kv);
  tree_.release_slots(freed_.slots);
  std::ranges::fill(is_reported_, std::uint8_t{0});
}

void RadixKv::check() const {
  constexpr const char* structure = "RadixKv";
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const Request& request = requests_[i];
    const RequestId id{static_cast<std::int32_t>(i)};
    if (!book_.record(id).running || !book_.record(id).has_kv()) continue;
    rows += std::ssize(request.row) - request.held_tokens;
    require_invariant(request.held_tokens <= book_.record(id).computed, structure,
                      "a request holds more than it computed");
    require_invariant(book_.record(id).is_fork || std::ssize(request.row) >= book_.record(id).computed, structure,
                      "a request computed more than it holds");
    require_invariant(tree_.contains(request.lock.node()), structure, "a locked node is gone");
  }
  require_invariant(kv_.available() + kv_.closed() + rows + tree_.sizes().total_tokens() == kv_.capacity(), structure,
                    "KV is lost");
  kv_.check_invariants();
  tree_.check_invariants();
}

}  // namespace stateport::detail
