// SPDX-License-Identifier: Apache-2.0
#include "serve/hash_slots.hpp"

#include <stateport/core/model/error.hpp>

#include "serve/arena_sizes.hpp"
#include "serve/checkpoint_placement.hpp"
#include "serve/request_options.hpp"

#include <algorithm>
#include <functional>
#include <utility>

namespace stateport::detail {
namespace {

/// Of the state after `tokens` tokens, whole blocks.
StateTag tag_of(const GrowingHashes& hashes, std::int64_t tokens, const RequestBook& book) {
  const auto index = static_cast<std::size_t>(tokens / book.options.block_size_tokens) - 1;
  return {
      .token_count = tokens, .prefix = hashes.prefixes()[index], .layout_fingerprint = book.slots.layout_fingerprint};
}

/// The states that the pass saves on its way, each in a scratch state of its own. `positions` is scratch memory.
void plan_saves(const RequestBook& book, Pass& pass, const RowPlan& row, std::vector<std::int64_t>& positions) {
  checkpoints_of(book, row.request).saves(row.start, row.start + row.tokens, positions);
  for (const std::int64_t at : positions)
    pass.saves.push_back({.offset = static_cast<std::int32_t>(at - row.start),
                          .slot = SlotId{static_cast<std::int32_t>(pass.saves.size())},
                          .in_scratch = true});
}

SlotAllocatorOptions allocator_options(RequestBook& book, std::function<void(const SlotVictim&)> on_victim) {
  const RequestCacheOptions& options = book.options;
  SlotAllocatorOptions allocator{.kv_follows = shares_memory(book.slots)};
  if (options.eviction != EvictionOrder::lru)
    allocator.eviction = make_eviction_policy(options.eviction, options.eviction_options, options.memory);
  allocator.block_owners = book.kv_owners();
  allocator.slot_owners = book.state_owners();
  allocator.on_victim = std::move(on_victim);
  return allocator;
}

}  // namespace

HashSlots::HashSlots(RequestBook& book)
    : RequestIndex(book),
      kv_(book),
      slots_(checkpoint_slots(options_)),
      allocator_(slots_, kv_.pool(),
                 allocator_options(book,
                                   [this](const SlotVictim& victim) {
                                     budget_.note_victim(victim.block);
                                     lose_state(victim.block);
                                   })),
      budget_(book, kv_, slots_, allocator_),
      matcher_(kv_.pool(), &allocator_,
               {.block_size_tokens = options_.block_size_tokens, .layout_fingerprint = book_.slots.layout_fingerprint}),
      requests_(index_rows(options_)),
      published_slot_(static_cast<std::size_t>(kv_.pool().block_count())),
      state_prefix_(static_cast<std::size_t>(checkpoint_slots(options_))),
      noted_(static_cast<std::size_t>(kv_.pool().block_count()), 0),
      is_loading_(noted_.size(), 0) {
  for (std::size_t i = 0; std::cmp_less(i, options_.max_requests); ++i) {
    SlotId live{static_cast<std::int32_t>(i)};
    if (!book_.slots.separate_checkpoints) static_cast<void>(slots_.allocate({&live, 1}));
    requests_[i].columns[0] = live.value();
  }
  const std::size_t most = saves_max(options_) + requests_.size();
  checkpoints_.reserve(most);
  blocks_.reserve(most);
  given_.reserve(most);
  to_report_.reserve(requests_.size());
  matched_.reserve(request_blocks(options_));
  passed_over_.reserve(request_blocks(options_));
  positions_.reserve(request_blocks(options_));
  kv_.pool().add_listener(*this);
  book_.elastic = &budget_;
}

HashSlots::~HashSlots() {
  kv_.pool().remove_listener(*this);
}

std::optional<OpenedPrompt> HashSlots::open(RequestId id, const PromptNames& names) {
  kv_.hash(id, book_.record(id).tokens.all(), names);
  requests_[id.index()] = {.columns = requests_[id.index()].columns};
  return take_hit(id, look_up(id));
}

std::optional<OpenedPrompt> HashSlots::refresh(RequestId id) {
  const BlockMatch match = look_up(id);
  const std::int64_t cached_tokens = std::int64_t{match.matched_blocks} * options_.block_size_tokens;
  if (!book_.opened_of(id).is_less_than(match.skip_tokens, cached_tokens)) return std::nullopt;
  return take_hit(id, match);
}

/// Orders that learn hear of no prompt of a fork: it was not looked up.
bool HashSlots::fork(RequestId id, RequestId point, bool takes_over) {
  Request& request = requests_[id.index()];
  Request& from = requests_[point.index()];
  request.known_tokens = from.known_tokens;
  request.reported = true;
  if (takes_over) {
    kv_.swap(id, point);
    std::swap(request.columns, from.columns);
  } else {
    kv_.fork(id, point, book_.record(id).computed);
    book_.states.of(id)[0] = read_point(request.columns, from.columns);
  }
  return true;
}

/// Its blocks are in matched_.
BlockMatch HashSlots::look_up(RequestId id) {
  const std::size_t cached = kv_.match(id).size();
  const GrowingHashes& hashes = kv_.hashes(id);
  matched_.resize(cached);
  return matcher_.match({.chunk_tokens = book_.record(id).prompt_tokens,
                         .keys = hashes.keys().first(cached),
                         .prefixes = hashes.prefixes().first(cached)},
                        matched_);
}

/// A request that holds blocks makes them the most recent, and their states with them. A state is only as recent as the
/// request that last continued from it, so those that this one passes over keep their place. So does the block where
/// the prompt merely continues a cached one: a state made there is superseded at once by the one at the end.
OpenedPrompt HashSlots::take_hit(RequestId id, const BlockMatch& match) {
  BlockPool& pool = kv_.pool();
  const auto blocks = std::span(matched_).first(static_cast<std::size_t>(match.matched_blocks));
  const auto hit = static_cast<std::int32_t>(match.skip_tokens / options_.block_size_tokens);
  passed_over_.clear();
  for (std::int32_t depth = 1; depth <= match.matched_blocks; ++depth) {
    const BlockId block = blocks[static_cast<std::size_t>(depth - 1)];
    const bool continued = depth == match.matched_blocks && pool.child_count(block) == 0;
    if (depth != hit && (continued || allocator_.has_state(block)))
      passed_over_.push_back({block, pool.last_use_tick(block)});
  }
  kv_.begin(id, blocks);
  for (const Recency& kept : passed_over_) pool.set_last_use({&kept.block, 1}, kept.tick);
  Request& request = requests_[id.index()];
  const SlotId before = request.pinned;
  const std::int64_t reused_before = before.valid() ? book_.opened_of(id).reused_tokens : 0;
  request.pinned = match.state ? allocator_.pin(match.state->block) : SlotId{};
  if (before.valid()) allocator_.unpin(before);
  request.known_tokens = std::int64_t{match.state_blocks} * options_.block_size_tokens;
  if (request.pinned.valid() && request.pinned != before) {
    // A state that was withdrawn may have been made anew: the request has its hit already.
    if (match.skip_tokens > reused_before) book_.note_reuse(id, request.pinned);
    book_.note_shared_state(id, 0, request.pinned);
  }
  book_.states.of(id)[0] = {.read_column = match.skip_tokens > 0 ? 0 : -1};
  return {.reused_tokens = match.skip_tokens,
          .cached_tokens = std::int64_t{match.matched_blocks} * options_.block_size_tokens,
          .lost = match.lost,
          .hit = request.pinned};
}

PromptChunk HashSlots::split(const RequestRecord& record, std::int64_t start, std::int64_t tokens) const {
  return split_at_checkpoints(book_, record.id, start, tokens);
}

void HashSlots::place(Pass& pass, std::size_t index) {
  const RowPlan& row = pass.rows[index];
  begin_live_slot(book_, pass, row.request);
  const std::size_t first = pass.saves.size();
  const RequestRecord& request = book_.record(row.request);
  if (!pass.inserts && !request.stale && row.start < request.prompt_tokens) plan_saves(book_, pass, row, positions_);
  pass.save_ranges[index] = {first, pass.saves.size()};
  pass.quiet &= !ends_on_checkpoint(book_, pass, row);
}

void HashSlots::settle(Pass& pass, std::size_t index, std::int32_t) {
  const RowPlan& row = pass.rows[index];
  Request& request = requests_[row.request.index()];
  const std::int64_t computed = book_.record(row.request).computed;
  book_.states.of(row.request)[0].read_column = 0;
  request.columns[1] = no_column;
  if (request.pinned.valid()) allocator_.unpin(request.pinned);
  request.pinned = {};
  if (kv_.fills_block(row.request, computed))
    kv_.register_full(row.request, book_.record(row.request).tokens.first(computed), book_.record(row.request).names());
  if (!request.reported && computed >= book_.record(row.request).prompt_tokens) {
    request.reported = true;
    to_report_.push_back(row.request);
  }
  if (row.drafts > 0) {
    const std::int64_t at = checkpoint_of_steps(book_, row);
    if (at == 0) return;
    return note(row.request, at,
                {.source = Source::step,
                 .row = static_cast<std::int32_t>(book_.after[0].steps.size()) - 1,
                 .step = pass.kept_step(index, at - row.start - 1)});
  }
  const auto [first, end] = pass.save_ranges[index];
  for (std::size_t i = first; i < end; ++i)
    note(row.request, row.start + pass.saves[i].offset, {.source = Source::scratch, .from = pass.saves[i].slot});
  if (ends_on_checkpoint(book_, pass, row))
    note(row.request, computed, {.source = Source::live, .from = SlotId{request.columns[0]}});
}

/// Passes inside a block change nothing but the request's own counts.
std::int64_t HashSlots::quiet_until(RequestId request) const {
  return floor_to(book_.record(request).computed, options_.block_size_tokens) + options_.block_size_tokens;
}

/// `checkpoint` is the state of the request after `tokens` tokens, whole blocks.
void HashSlots::note(RequestId request, std::int64_t tokens, Checkpoint checkpoint) {
  if (book_.record(request).stale) return;
  const auto index = static_cast<std::size_t>(tokens / options_.block_size_tokens) - 1;
  checkpoint.request = request;
  checkpoint.block = kv_.blocks(request)[index];
  checkpoint.tag = tag_of(kv_.hashes(request), tokens, book_);
  const std::span<const std::int64_t> named = book_.breakpoints_of(request);
  checkpoint.named = std::ranges::find(named, tokens) != named.end();
  std::uint32_t& noted = noted_[checkpoint.block.index()];
  if (noted == commit_ || is_loading_[checkpoint.block.index()] != 0) return;
  if (allocator_.find_tagged(kv_.hashes(request).keys()[index], checkpoint.tag)) return;
  noted = commit_;
  checkpoints_.push_back(checkpoint);
  blocks_.push_back(checkpoint.block);
}

bool HashSlots::has_state(RequestId request, std::int64_t tokens) const {
  const auto index = static_cast<std::size_t>(tokens / options_.block_size_tokens) - 1;
  const GrowingHashes& hashes = kv_.hashes(request);
  return kv_.finds_all(request, tokens) &&
         allocator_.find_tagged(hashes.keys()[index], tag_of(hashes, tokens, book_)).has_value();
}

void HashSlots::publish(Pass&) {
  if (!checkpoints_.empty()) {
    const std::size_t wanted = checkpoints_.size();
    book_.note_need(MemoryPart::states, static_cast<std::int64_t>(wanted));
    book_.note_lack(MemoryPart::states, static_cast<std::int64_t>(wanted) - slots_.free_slots());
    given_.resize(wanted);
    while (slots_.free_slots() < std::ssize(checkpoints_) && budget_.evict_demoted_state()) {
    }
    if (book_.tenants) {
      take_slots_by_shares();
    } else if (const SlotDemand demand = allocator_.try_allocate(blocks_, given_); !demand.met()) {
      keep_what_fits(demand.available);
      given_.resize(blocks_.size());
      allocator_.allocate(blocks_, given_);
    }
    book_.dropped += static_cast<std::int32_t>(wanted - blocks_.size());
    book_.published = static_cast<std::int32_t>(blocks_.size());
    for (std::size_t i = 0; i < checkpoints_.size(); ++i) store(checkpoints_[i], given_[i]);
    checkpoints_.clear();
    blocks_.clear();
    ++commit_;
    budget_.drop_useless_of_victims();
  }
  for (const RequestId id : to_report_) report_prompt(id);
  to_report_.clear();
}

/// Where tenants have shares: each checkpoint asks for its own tenant, in the order of keep_what_fits(). Checkpoints
/// that find a slot stay: given_[i] is that of checkpoints_[i].
void HashSlots::take_slots_by_shares() {
  given_.assign(blocks_.size(), SlotId{});
  for (const bool named : {true, false})
    for (std::size_t i = checkpoints_.size(); i-- > 0;) {
      if (checkpoints_[i].named != named) continue;
      book_.tenants->ask_for_block(blocks_[i]);
      if (!allocator_.try_allocate({&blocks_[i], 1}, {&given_[i], 1}).met()) given_[i] = SlotId{};
      budget_.drop_useless_of_victims();
    }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < checkpoints_.size(); ++i) {
    if (!given_[i].valid()) continue;
    checkpoints_[kept] = checkpoints_[i];
    blocks_[kept] = blocks_[i];
    given_[kept++] = given_[i];
  }
  checkpoints_.resize(kept);
  blocks_.resize(kept);
  given_.resize(kept);
}

/// Those that have names, then the last ones, of a row the deepest. Those whose block has a slot need none.
void HashSlots::keep_what_fits(std::int64_t available) {
  const auto needs_room = [&](const Checkpoint& checkpoint) { return !allocator_.has_state(checkpoint.block); };
  std::int64_t for_named =
      std::ranges::count_if(checkpoints_, [&](const Checkpoint& each) { return each.named && needs_room(each); });
  for_named = std::min(for_named, available);
  std::int64_t for_others = available - for_named;
  std::size_t first = checkpoints_.size();
  for (std::size_t i = checkpoints_.size(); i-- > 0;) {
    std::int64_t& room = checkpoints_[i].named ? for_named : for_others;
    if (!needs_room(checkpoints_[i]) || room-- > 0) checkpoints_[--first] = checkpoints_[i];
  }
  checkpoints_.erase(checkpoints_.begin(), checkpoints_.begin() + static_cast<std::ptrdiff_t>(first));
  blocks_.clear();
  for (const Checkpoint& checkpoint : checkpoints_) blocks_.push_back(checkpoint.block);
}

void HashSlots::store(const Checkpoint& checkpoint, SlotId slot) {
  RequestBook::After& copies = book_.after[0];
  switch (checkpoint.source) {
    case Source::scratch:
      copies.from_scratch.push_back(SlotCopy::whole(checkpoint.from, slot));
      break;
    case Source::live:
      copies.copies.push_back(SlotCopy::whole(checkpoint.from, slot));
      break;
    case Source::step: {
      StepCommit& step = copies.steps[static_cast<std::size_t>(checkpoint.row)];
      step.kept_step = checkpoint.step;
      step.kept_slot = slot;
      break;
    }
  }
  make_findable(checkpoint.request, checkpoint.block, checkpoint.tag, slot);
}

/// The state of this block, which the request made or loaded, lies in its slot.
void HashSlots::make_findable(RequestId request, BlockId block, const StateTag& tag, SlotId slot) {
  const BlockHash hash = kv_.pool().hash(block);
  // The state of another prefix with the same key cannot be found any more.
  if (const BlockId before = allocator_.find(hash); before.valid() && published_slot_[before.index()].valid()) {
    book_.news.state_removed(0, state_prefix_[published_slot_[before.index()].index()]);
    if (book_.checks) book_.checks->lost(0, published_slot_[before.index()]);
    published_slot_[before.index()] = {};
  }
  allocator_.withdraw(block);
  allocator_.set_tag(block, tag);
  allocator_.register_hashes({&block, 1}, {&hash, 1});
  published_slot_[block.index()] = slot;
  state_prefix_[slot.index()] = tag.prefix;
  if (book_.sessions) book_.sessions->take_state(0, slot, block.value());
  if (book_.checks) book_.checks->published(0, slot, request, tag.prefix);
  book_.ages.made(slot, book_.now_s);
  book_.news.state_stored(0, tag.prefix, tag.token_count, slot);
}

bool HashSlots::reserve_load(RequestId id, std::int64_t tokens, std::int64_t cached_tokens,
                             std::vector<std::int32_t>& kv_blocks, std::span<SlotId> slots) {
  if (!kv_.reserve(id, tokens)) return false;
  const auto blocks = kv_.blocks(id);
  const auto first = static_cast<std::size_t>(cached_tokens / options_.block_size_tokens);
  const auto end = static_cast<std::size_t>(tokens / options_.block_size_tokens);
  // The slot of a shared block may be the target of another request's load.
  if (allocator_.has_state(blocks[end - 1])) return false;
  book_.note_lack(MemoryPart::states, 1 - slots_.free_slots());
  if (slots_.free_slots() == 0) budget_.evict_demoted_state();
  const bool has_slot = allocator_.try_allocate(blocks.subspan(end - 1, 1), slots.first(1)).met();
  budget_.drop_useless_of_victims();
  if (!has_slot) return false;
  requests_[id.index()].loading = allocator_.pin(blocks[end - 1]);
  is_loading_[blocks[end - 1].index()] = 1;
  for (std::size_t i = first; i < end; ++i) kv_blocks.push_back(kv_.places().of(blocks[i]));
  return true;
}

SlotId HashSlots::end_load(RequestId id, std::int64_t tokens, bool done) {
  Request& request = requests_[id.index()];
  const SlotId slot = std::exchange(request.loading, SlotId{});
  const auto last = static_cast<std::size_t>(tokens / options_.block_size_tokens) - 1;
  BlockId block = kv_.blocks(id)[last];
  is_loading_[block.index()] = 0;
  if (!done) {
    allocator_.unpin(slot);
    allocator_.invalidate(block);
    return SlotId{};
  }
  // Another request may have stored the block meanwhile. If that has a state, or is to get one, the slot is this
  // request's alone, and free when the request has begun.
  const BlockId same = kv_.findable(id, last);
  if (same.valid() && same != block && !allocator_.has_state(same)) {
    allocator_.move_state(block, same);
    block = same;
  }
  kv_.register_full(id, book_.record(id).tokens.first(tokens), book_.record(id).names());
  if (request.pinned.valid()) allocator_.unpin(request.pinned);
  request.pinned = slot;
  request.known_tokens = std::max(request.known_tokens, tokens);
  if (allocator_.slot_of(block) == slot)
    make_findable(id, block, tag_of(kv_.hashes(id), tokens, book_), slot);
  else if (book_.checks)
    book_.checks->published(0, slot, id, PrefixHash{}, false);
  book_.states.of(id)[0].read_column = 0;
  return slot;
}

/// The state that was published in the slot of this block is gone.
void HashSlots::lose_state(BlockId block) {
  const SlotId slot = published_slot_[block.index()];
  if (!slot.valid()) return;
  book_.news.state_removed(0, state_prefix_[slot.index()]);
  if (book_.sessions) book_.sessions->give_state(0, slot);
  if (book_.checks) book_.checks->lost(0, slot);
  if (!book_.forgetting) book_.ages.lost(slot, book_.now_s);
  published_slot_[block.index()] = {};
}

void HashSlots::on_blocks_deregistered(std::span<const BlockId> blocks, std::span<const BlockHash>) {
  for (const BlockId block : blocks) {
    lost_with_blocks_ += published_slot_[block.index()].valid() && !book_.forgetting;
    lose_state(block);
  }
}

/// The request runs on behind its prompt.
void HashSlots::report_prompt(RequestId id) {
  Request& request = requests_[id.index()];
  const std::int64_t block = options_.block_size_tokens;
  const std::int64_t prompt = book_.record(id).prompt_tokens;
  request.past =
      allocator_.note_served(kv_.hashes(id).keys().first(static_cast<std::size_t>(prompt / block)),
                             {.usable_blocks = static_cast<std::int32_t>((prompt - 1) / block),
                              .matched_blocks = static_cast<std::int32_t>(book_.opened_of(id).cached_tokens / block),
                              .hit_blocks = static_cast<std::int32_t>(book_.opened_of(id).reused_tokens / block),
                              .tokens = prompt + 1,
                              .hint = book_.record(id).hint},
                             book_.now_s);
}

/// A prompt that continues the request continues from its last state. That is its own only if it is beyond the hit.
void HashSlots::report_end(RequestId id, const ReuseHint& hint) {
  Request& request = requests_[id.index()];
  const auto full = static_cast<std::size_t>(book_.record(id).computed / options_.block_size_tokens);
  const auto hashes = kv_.hashes(id).keys().first(full);
  const std::optional<FoundState> last = allocator_.find_longest_state(hashes);
  if (!last ||
      static_cast<std::int64_t>(last->index + 1) * options_.block_size_tokens <= book_.opened_of(id).reused_tokens)
    return;
  if (!request.reported) report_prompt(id);
  allocator_.note_served(
      hashes.first(last->index + 1),
      {.matched_blocks = static_cast<std::int32_t>(book_.opened_of(id).cached_tokens / options_.block_size_tokens),
       .past = request.past,
       .hint = hint},
      book_.now_s);
}

void HashSlots::close(RequestId id, RequestEnd how, const ReuseHint& hint) {
  Request& request = requests_[id.index()];
  if (request.pinned.valid()) allocator_.unpin(request.pinned);
  if (how != RequestEnd::aborted && options_.eviction != EvictionOrder::lru) report_end(id, hint);
  if (shares_memory(book_.slots)) {
    budget_.order_uses(id, request.known_tokens);
    const std::span<const BlockId> held = kv_.blocks(id);
    matched_.assign(held.begin(), held.end());
  }
  kv_.end(id);
  request = {.columns = {request.columns[0], no_column}};
  if (!shares_memory(book_.slots)) return;
  // KV behind the last state of the request: no request can continue from it.
  for (std::size_t i = matched_.size(); i > 0; --i) budget_.drop_useless(matched_[i - 1]);
  book_.ask_for_nobody();  // memory of others that run is not taken from the floor of this one's tenant
  budget_.keep();
}

CacheUsage HashSlots::usage() const noexcept {
  return {.kv_tokens = kv_.used_blocks() * options_.block_size_tokens,
          .states = budget_.states(),
          .evicted_kv_tokens = kv_.evicted_blocks() * options_.block_size_tokens,
          .evicted_states = allocator_.evictions() + lost_with_blocks_};
}

void HashSlots::forget(const Forgotten& forgotten) {
  const std::span<const BlockId> held = kv_.forget(forgotten);
  for (const BlockId block : held) lose_state(block);
  allocator_.invalidate(held);
}

void HashSlots::withdraw(std::size_t, SlotId slot) {
  const BlockId block{slots_.owner(slot)};
  lose_state(block);
  allocator_.invalidate(block);
}

void HashSlots::forget_all() {
  std::ranges::fill(published_slot_, SlotId{});
  allocator_.reset();
  kv_.reset();
}

void HashSlots::check() const {
  kv_.pool().check_invariants();
  slots_.check_invariants();
  allocator_.check_invariants();
  std::int64_t pins = 0;
  for (std::int32_t slot = 0; slot < slots_.capacity_slots(); ++slot)
    if (!slots_.is_free(SlotId{slot})) pins += slots_.lock_count(SlotId{slot});
  for (const Request& request : requests_) pins -= request.pinned.valid() + request.loading.valid();
  require_invariant(pins == 0, "HashSlots", "a slot is pinned by no request");
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const RequestId id{static_cast<std::int32_t>(i)};
    const bool shares_store = requests_[i].columns[0] >= 0 && !book_.slots.separate_checkpoints;
    require_invariant(!shares_store || slots_.owner(SlotId{requests_[i].columns[0]}) == SlotPool::caller, "HashSlots",
                      "a live slot has another owner");
    if (!book_.record(id).running || book_.record(id).is_fork) continue;
    const std::int64_t held = std::ssize(kv_.blocks(id)) * options_.block_size_tokens;
    require_invariant(held >= book_.record(id).computed, "HashSlots", "a request computed more than it holds");
  }
}

}  // namespace stateport::detail
