// SPDX-License-Identifier: Apache-2.0
#include "serve/radix_slots.hpp"

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>

#include "serve/checkpoint_placement.hpp"

#include <algorithm>
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

/// The tree has the state after all of these tokens.
bool has_state(const PrefixTree& tree, std::span<const Token> tokens, const Namespace& name_space) {
  return tree.peek(tokens, name_space).tokens == std::ssize(tokens);
}

/// The tree has to report its contents.
bool tells(const RequestCacheOptions& options) {
  return options.events || options.tiers.enabled();
}

/// Orders spare contents that the request used, which are locked until it ends; hix knows their worth.
bool spares_last_request(EvictionOrder order) {
  return order != EvictionOrder::hix;
}

}  // namespace

RadixSlots::RadixSlots(RequestBook& book)
    : RequestIndex(book),
      hasher_(options_),
      tree_([&] {
        PrefixTree::Options tree{.page_size = options_.block_size_tokens,
                                 .slots = checkpoint_slots(options_),
                                 .chunk_size = std::max(options_.scan_alignment_tokens, 1),
                                 .layout_fingerprint = options_.layout_fingerprint,
                                 .eviction = options_.eviction,
                                 .eviction_options = options_.eviction_options,
                                 .memory = options_.memory,
                                 .position_tokens = options_.position_tokens,
                                 .kv_indices = options_.kv_tokens + options_.block_size_tokens,
                                 .hash_seed = options_.hash_seed,
                                 .kv_event_hash = options_.hash,
                                 .kv_event_hash_seed = options_.hash_seed};
        if (tells(options_)) tree.on_kv_event = [this](const KvEvent& event) { on_kv_event(event); };
        return tree;
      }()),
      kv_(options_.kv_tokens, options_.block_size_tokens),
      requests_(static_cast<std::size_t>(options_.max_requests)),
      state_prefix_(static_cast<std::size_t>(checkpoint_slots(options_))),
      told_(state_prefix_.size(), 0) {
  freed_.slots.reserve(state_prefix_.size());
  positions_.reserve(request_blocks(options_));
  freed_.kv.reserve(static_cast<std::size_t>(kv_.capacity()));
  for (Request& request : requests_) {
    request.row.reserve(request_blocks(options_) * static_cast<std::size_t>(options_.block_size_tokens));
    if (tells(options_)) request.hashes = GrowingHashes(request_blocks(options_));
  }
}

/// Contents that left the tree are free again.
void RadixSlots::take_back(const Freed& freed) {
  kv_.release(freed.kv);
  for (const SlotId slot : freed.slots) {
    ++evicted_states_;
    book_.ages.lost(slot, book_.now_s);
    if (!told_[slot.index()]) continue;
    told_[slot.index()] = 0;
    book_.news.state_removed(0, state_prefix_[slot.index()]);
  }
}

void RadixSlots::evict(EvictDemand demand) {
  freed_.clear();
  evicted_kv_tokens_ += tree_.evict(demand, freed_).tokens;
  take_back(freed_);
}

SlotId RadixSlots::take_slot() {
  SlotId slot;
  if (checkpoint_slots_ >= options_.checkpoints) return slot;
  if (!tree_.allocate_slots({&slot, 1})) {
    evict({.states = 1});
    if (!tree_.allocate_slots({&slot, 1})) return SlotId{};
  }
  ++checkpoint_slots_;
  return slot;
}

/// Another request has made the state after `tokens` tokens, the deepest that the pass would save, and a slot for it
/// would cost another state. The pass saves none then: one look at the tree decides for all of its checkpoints.
bool RadixSlots::is_made(RequestId id, std::int64_t tokens) {
  if (tree_.slots().free_slots() > 0 || !has_state(tree_, record(id).tokens.first(tokens), name_space(id)))
    return false;
  requests_[id.index()].made_tokens = tokens;
  return true;
}

/// If the tree has the state after `tokens` tokens, the request reads the tree's KV up to there, and its own is free.
void RadixSlots::share_kv(RequestId id, std::int64_t tokens) {
  if (tokens <= requests_[id.index()].protected_tokens ||
      !has_state(tree_, record(id).tokens.first(tokens), name_space(id)))
    return;
  static_cast<void>(donate(id, {}, tokens, {}));
}

void RadixSlots::return_slot(SlotId slot) {
  tree_.release_slots({&slot, 1});
  --checkpoint_slots_;
}

std::optional<OpenedPrompt> RadixSlots::open(RequestId id, const PromptNames& names) {
  Request& request = requests_[id.index()];
  const RequestRecord& prompt = record(id);
  request.name_space = with_media(names);
  tree_.set_time(book_.now_s);
  const auto usable = prompt.tokens.first(prompt.prompt_tokens - 1);
  request.row.resize(prompt.tokens.size());
  freed_.clear();
  request.hit = options_.separate_checkpoints
                    ? tree_.match(usable, name_space(id), request.row, Lookup::request, prompt.prompt_tokens)
                    : tree_.match_with_live_slot(usable, name_space(id), request.row, {}, freed_, prompt.prompt_tokens);
  evicted_kv_tokens_ += std::ssize(freed_.kv);
  take_back(freed_);
  request.lock = tree_.lock(request.hit);
  SlotId live = options_.separate_checkpoints ? SlotId{static_cast<std::int32_t>(id.index())} : request.hit.live_slot;
  if (!live.valid() && !tree_.allocate_slots({&live, 1})) {
    evict({.states = 1});
    if (!tree_.allocate_slots({&live, 1})) {
      request.lock.release();
      request.row.clear();
      return std::nullopt;
    }
  }
  request.live = live.value();
  request.row.resize(static_cast<std::size_t>(request.hit.tokens));
  request.protected_tokens = request.hit.tokens;
  request.made_tokens = 0;
  request.decoded.reset();
  request.hashes.clear();
  book_.states.of(id)[0] = {.read_column = request.hit.tokens > 0 ? 0 : -1};
  if (request.hit.slot.valid()) book_.ages.reused(request.hit.slot, book_.now_s);
  OpenedPrompt opened{.reused_tokens = request.hit.tokens,
                      .cached_tokens = request.hit.walked_tokens,
                      .lost = request.hit.lost,
                      .hit = request.hit.slot};
  look_further(id, opened);
  return opened;
}

/// The forward needs a token, so the last page of a prompt of whole pages was not looked up: it may be cached all the
/// same.
void RadixSlots::look_further(RequestId id, OpenedPrompt& opened) const {
  const std::int64_t prompt = record(id).prompt_tokens;
  if (opened.cached_tokens + options_.block_size_tokens != prompt || opened.lost == LostHit::locked_pool) return;
  const PrefixMatch all = tree_.peek(record(id).tokens.first(prompt), name_space(id));
  if (all.walked_tokens == opened.cached_tokens) return;
  opened.cached_tokens = all.walked_tokens;
  opened.lost = all.tokens > opened.reused_tokens ? LostHit::too_few_tokens : all.lost;
}

bool RadixSlots::reserve(RequestId id, std::int64_t upto) {
  std::vector<KvIndex>& row = requests_[id.index()].row;
  if (upto <= std::ssize(row)) return true;
  const auto wanted = static_cast<std::size_t>(ceil_div(upto, options_.block_size_tokens) * options_.block_size_tokens);
  const std::size_t held = row.size();
  row.resize(wanted);
  const auto fresh = std::span(row).subspan(held);
  if (kv_.allocate(fresh)) return true;
  evict({.tokens = std::ssize(fresh)});
  if (kv_.allocate(fresh)) return true;
  row.resize(held);
  return false;
}

void RadixSlots::place(Pass& pass, std::size_t index) {
  const RowPlan& row = pass.rows[index];
  begin_live_slot(book_, pass, row.request);
  const std::size_t first = pass.saves.size();
  if (!pass.inserts && row.start < record(row.request).prompt_tokens) plan_saves(pass, row);
  for (std::size_t i = first; i < pass.saves.size(); ++i) {
    StateSave& save = pass.saves[i];
    pass.save_slots.push_back(save.slot);
    if (options_.separate_checkpoints) save = {save.offset, SlotId{static_cast<std::int32_t>(i)}, true};
  }
  pass.save_ranges[index] = {first, pass.saves.size()};
  pass.quiet &= !ends_on_checkpoint(book_, pass, row);
}

void RadixSlots::save(Pass& pass, const RowPlan& row, std::int64_t at) {
  const SlotId slot = take_slot();
  if (slot.valid())
    pass.saves.push_back({.offset = static_cast<std::int32_t>(at - row.start), .slot = slot});
  else
    ++pass.dropped;
}

/// If room is short, the deepest states that are placed get it: they serve the prompts that continue this one. That of
/// the end takes its slot when the pass settles.
void RadixSlots::plan_saves(Pass& pass, const RowPlan& row) {
  const PromptCheckpoints placement = checkpoints_of(book_, row.request);
  const std::int64_t end = row.start + row.tokens;
  const bool by_pass = placement.placement == CheckpointPlacement::passes;
  const std::int32_t of_end = !by_pass && ends_on_checkpoint(book_, pass, row) ? 1 : 0;
  const auto first = static_cast<std::ptrdiff_t>(pass.saves.size());
  placement.saves(row.start, end, positions_);
  if (!positions_.empty() && is_made(row.request, positions_.back())) return;
  if (!by_pass) std::ranges::reverse(positions_);
  for (const std::int64_t at : positions_) {
    if (checkpoint_slots_ + of_end < options_.checkpoints)
      save(pass, row, at);
    else
      ++pass.dropped;
  }
  if (placement.spare > 0) {
    // For one more state than those that are planned, without an eviction.
    const auto has_room = [&] {
      if (checkpoint_slots_ + of_end >= options_.checkpoints || tree_.slots().free_slots() <= of_end) return false;
      const CacheUsage now = usage();
      return options_.budget_bytes == 0 ||
             options_.memory.of(now.kv_tokens, now.states + of_end + 1) <= options_.budget_bytes;
    };
    for (std::int64_t at = floor_to(row.start, placement.spare) + placement.spare; at < end; at += placement.spare)
      if (placement.wants_if_spare(at) && placement.can_save(row.start, at) && has_room()) save(pass, row, at);
  }
  std::sort(pass.saves.begin() + first, pass.saves.end(),
            [](const StateSave& a, const StateSave& b) { return a.offset < b.offset; });
}

void RadixSlots::unplace(Pass& pass) {
  for (const SlotId slot : pass.save_slots) return_slot(slot);
  pass.saves.clear();
  pass.save_slots.clear();
}

void RadixSlots::settle(Pass& pass, std::size_t index, std::int32_t) {
  const RowPlan& row = pass.rows[index];
  Request& request = requests_[row.request.index()];
  const std::int64_t computed = record(row.request).computed;
  book_.states.of(row.request)[0].read_column = 0;
  if (row.drafts > 0) return settle_steps(row);
  const auto [first, end] = pass.save_ranges[index];
  for (std::size_t i = first; i < end; ++i) {
    const StateSave& save = pass.saves[i];
    const SlotId slot = pass.save_slots[i];
    const std::int64_t at = row.start + save.offset;
    const bool spare = options_.spare_checkpoint_tokens > 0 && checkpoints_of(book_, row.request).wants_if_spare(at);
    if (donate(row.request, slot, at, {.spare = spare})) {
      --checkpoint_slots_;
      if (save.in_scratch) book_.after[0].from_scratch.push_back(SlotCopy::whole(save.slot, slot));
    } else {
      return_slot(slot);
    }
  }
  if (request.made_tokens <= computed) share_kv(row.request, std::exchange(request.made_tokens, 0));
  if (!ends_on_checkpoint(book_, pass, row)) return;
  const bool in_prompt = computed <= record(row.request).prompt_tokens;
  if (in_prompt && is_made(row.request, computed)) return share_kv(row.request, std::exchange(request.made_tokens, 0));
  if (const SlotId slot = publish_state(row.request, computed); slot.valid())
    book_.after[0].copies.push_back(SlotCopy::whole(request.live, slot.value()));
}

/// Takes a slot for the state after `tokens` tokens and gives it to the tree. None: there is no room, or the tree has
/// this state already; then nothing is to be copied.
SlotId RadixSlots::publish_state(RequestId id, std::int64_t tokens) {
  Request& request = requests_[id.index()];
  // Where room is short, the checkpoint that decoding left before this one goes first, if no other request holds it.
  if (request.decoded && tree_.slots().free_slots() == 0 && checkpoint_slots_ < options_.checkpoints &&
      tree_.node(*request.decoded).state_lock == 1) {
    request.lock.release();
    freed_.clear();
    tree_.drop_state(*request.decoded, freed_);
    take_back(freed_);
  }
  const SlotId slot = take_slot();
  if (!slot.valid()) {
    ++book_.dropped;
    return slot;
  }
  const bool taken = donate(id, slot, tokens, {});
  if (taken)
    --checkpoint_slots_;
  else
    return_slot(slot);
  request.decoded.reset();
  if (taken && tokens > record(id).prompt_tokens) request.decoded = request.lock.node();
  return taken ? slot : SlotId{};
}

void RadixSlots::settle_steps(const RowPlan& row) {
  const std::int64_t at = checkpoint_of_steps(book_, row);
  if (at == 0) return;
  const SlotId slot = publish_state(row.request, at);
  if (!slot.valid()) return;
  StepCommit& step = book_.after[0].steps.back();
  step.kept_step = static_cast<std::int32_t>(at - row.start) - 1;
  step.kept_slot = slot;
}

/// Decoding does nothing for the tree between two checkpoints.
std::int64_t RadixSlots::quiet_until(RequestId request) const {
  const std::int64_t every = options_.decode_checkpoint_tokens;
  return every > 0 ? floor_to(record(request).computed, every) + every : INT64_MAX;
}

/// The slots of rows whose request ended while the pass ran are free again. A state that this commit made may have been
/// given up for a later one of it: no slot takes two copies.
void RadixSlots::publish(Pass& pass) {
  for (std::size_t i = 0; i < pass.rows.size() && !pass.saves.empty(); ++i) {
    if (pass.runs(i)) continue;
    const auto [first, end] = pass.save_ranges[i];
    for (std::size_t s = first; s < end; ++s) return_slot(pass.save_slots[s]);
  }
  RequestBook::After& after = book_.after[0];
  std::erase_if(after.from_scratch, [&](const SlotCopy& saved) {
    const auto is_target = [&](SlotId slot) { return slot.value() == saved.dst_slot; };
    return std::ranges::any_of(after.copies, is_target, [](const SlotCopy& copy) { return SlotId{copy.dst_slot}; }) ||
           std::ranges::any_of(after.steps, is_target, &StepCommit::kept_slot);
  });
}

/// The state after `tokens` tokens, whole pages, is (or will be, in order of the stream) in `slot`; none: the tree has
/// it. KV that the tree has too is free. True if the tree took the slot.
bool RadixSlots::donate(RequestId id, SlotId slot, std::int64_t tokens, const Donation& donation) {
  Request& request = requests_[id.index()];
  const auto count = static_cast<std::size_t>(tokens);
  const auto key = record(id).tokens.first(tokens);
  const auto known_tokens = static_cast<std::int64_t>(std::ssize(record(id).tokens.all()));
  if (slot.valid()) tree_.tag_slot(slot, tree_.state_tag(key, name_space(id)));
  inserted_ = key;
  inserted_kv_ = std::span(request.row).first(count);
  freed_.clear();
  const InsertResult inserted = tree_.insert(
      {.tokens = key,
       .kv = inserted_kv_,
       .slot = slot,
       .name_space = name_space(id),
       .prev_tokens = request.protected_tokens,
       .chunked = !donation.ends,
       .spare = donation.spare,
       .prompt = {.tokens = donation.ends ? 0 : known_tokens + 1, .past = request.hit.past, .hint = donation.hint}},
      freed_);
  take_back(freed_);
  const bool is_own = !inserted.state_exists && inserted.prefix_tokens == request.protected_tokens;
  if (!donation.ends && !is_own) hold_path(id, tokens);
  if (!donation.ends && is_own) {  // the row names the KV that the tree took
    request.lock = tree_.lock(inserted.node);
    request.protected_tokens = tokens;
  }
  if (inserted.state_exists || !slot.valid()) return false;
  ++book_.published;
  book_.ages.made(slot, book_.now_s);
  if (!book_.news.on()) return true;
  const GrowingHashes& hashes = hashes_of(id, tokens);
  state_prefix_[slot.index()] = hashes.prefixes()[static_cast<std::size_t>(tokens / options_.block_size_tokens) - 1];
  told_[slot.index()] = 1;
  book_.news.state_stored(0, state_prefix_[slot.index()], tokens, slot);
  return true;
}

const GrowingHashes& RadixSlots::hashes_of(RequestId id, std::int64_t tokens) {
  GrowingHashes& hashes = requests_[id.index()].hashes;
  hashes.extend(hasher_, record(id).tokens.first(tokens), {.name_space = name_space(id), .media = {}});
  return hashes;
}

std::int64_t RadixSlots::cached_now(RequestId id) {
  return tree_.peek(record(id).tokens.first(record(id).prompt_tokens), name_space(id)).walked_tokens;
}

/// The pages that the tree has, but not for the state of the hit, are taken twice until the load has ended.
bool RadixSlots::reserve_load(RequestId id, std::int64_t tokens, std::int64_t cached_tokens,
                              std::vector<std::int32_t>& kv_blocks, std::span<SlotId> slots) {
  Request& request = requests_[id.index()];
  // Since the lookup the tree may have evicted KV behind the hit.
  const std::int64_t cached = std::min(cached_tokens, tokens);
  const PrefixMatch path = tree_.match(record(id).tokens.first(tokens), name_space(id), {}, Lookup::again);
  const NodeId root = tree_.peek({}).node;
  if (cached > (path.kv_node == root ? 0 : tree_.node(path.kv_node).end_tokens)) return false;
  request.cached = tree_.lock(path.kv_node);
  request.loading = reserve(id, tokens) ? take_slot() : SlotId{};
  if (!request.loading.valid()) {
    request.cached.release();
    return false;
  }
  slots[0] = request.loading;
  for (std::int64_t at = cached_tokens; at < tokens; at += options_.block_size_tokens)
    kv_blocks.push_back(request.row[static_cast<std::size_t>(at)] / options_.block_size_tokens);
  return true;
}

SlotId RadixSlots::end_load(RequestId id, std::int64_t tokens, bool done) {
  Request& request = requests_[id.index()];
  const SlotId slot = std::exchange(request.loading, SlotId{});
  if (done && donate(id, slot, tokens, {}))
    --checkpoint_slots_;
  else
    return_slot(slot);
  request.cached.release();
  if (!done) return SlotId{};
  const PromptPast past = request.hit.past;
  request.hit = tree_.peek(record(id).tokens.first(tokens), name_space(id));
  request.hit.past = past;
  book_.states.of(id)[0].read_column = 0;
  return request.hit.slot;
}

/// The request reads the tree's KV for its first `tokens` tokens from now on, and holds that path.
void RadixSlots::hold_path(RequestId id, std::int64_t tokens) {
  Request& request = requests_[id.index()];
  const auto count = static_cast<std::size_t>(tokens);
  const PrefixMatch kept =
      tree_.match(record(id).tokens.first(tokens), name_space(id), std::span(request.row).first(count), Lookup::again);
  request.lock = tree_.lock(kept);
  request.protected_tokens = kept.tokens;
}

void RadixSlots::close(RequestId id, RequestEnd how, const ReuseHint& hint) {
  Request& request = requests_[id.index()];
  const std::int64_t computed = record(id).computed;
  const SlotId live{request.live};
  std::int64_t kept = request.protected_tokens;
  bool live_donated = false;
  if (how != RequestEnd::aborted && record(id).begun) {
    // A pass that is under way may have changed the live state already.
    const bool ends_page = computed > 0 && computed % options_.block_size_tokens == 0 && !book_.passes.in_flight(id);
    if (ends_page && !options_.separate_checkpoints) {
      live_donated = donate(id, live, computed, {.ends = true, .hint = hint});
      kept = std::max(kept, computed);
    } else if (ends_page && computed > request.protected_tokens && keep_copy(id, hint)) {
      kept = computed;
    } else if (request.protected_tokens > request.hit.tokens ||
               request.protected_tokens == floor_to(computed, options_.block_size_tokens)) {
      tell_end(id, hint);
    }
  }
  if (!live_donated && !options_.separate_checkpoints) tree_.release_slots({&live, 1});
  // The state that was donated just now lies beyond the path that is locked.
  if (options_.budget_bytes > 0 && spares_last_request(options_.eviction) && kept > request.protected_tokens)
    hold_path(id, kept);
  kv_.release(std::span(request.row).subspan(static_cast<std::size_t>(kept)));
  request.row.clear();
  if (spares_last_request(options_.eviction)) keep_to_budget();
  request.lock.release();
  if (!spares_last_request(options_.eviction)) keep_to_budget();
  request.live = -1;
  request.protected_tokens = 0;
}

/// Donates a copy of the live state, which the request ends with. False: there is no slot.
bool RadixSlots::keep_copy(RequestId id, const ReuseHint& hint) {
  const SlotId slot = take_slot();
  if (!slot.valid()) return false;
  if (donate(id, slot, record(id).computed, {.ends = true, .hint = hint})) {
    --checkpoint_slots_;
    book_.end_copies.push_back(SlotCopy::whole(requests_[id.index()].live, slot.value()));
  } else {
    return_slot(slot);
  }
  return true;
}

/// Nothing more is donated: the request ends at the last state that it left. A policy that learns is told, and the last
/// checkpoint of decoding is as recent as the end.
void RadixSlots::tell_end(RequestId id, const ReuseHint& hint) {
  if (options_.eviction != EvictionOrder::hix && !requests_[id.index()].decoded) return;
  const Request& request = requests_[id.index()];
  freed_.clear();
  tree_.insert({.tokens = record(id).tokens.first(request.protected_tokens),
                .kv = std::span(request.row).first(static_cast<std::size_t>(request.protected_tokens)),
                .slot = {},
                .name_space = name_space(id),
                .prev_tokens = request.protected_tokens,
                .prompt = {.past = request.hit.past, .hint = hint}},
               freed_);
}

void RadixSlots::keep_to_budget() {
  if (options_.budget_bytes == 0) return;
  const CacheUsage now = usage();
  const std::int64_t used_bytes = options_.memory.of(now.kv_tokens, now.states);
  if (used_bytes > options_.budget_bytes) evict({.bytes = used_bytes - options_.budget_bytes});
}

CacheUsage RadixSlots::usage() const noexcept {
  return {.kv_tokens = kv_.capacity() - kv_.available(),
          .states = tree_.sizes().total_states() + checkpoint_slots_,
          .evicted_kv_tokens = evicted_kv_tokens_,
          .evicted_states = evicted_states_,
          .metadata_bytes = tree_.bookkeeping_bytes()};
}

void RadixSlots::on_kv_event(const KvEvent& event) {
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
    book_.news.kv_stored(block.prefix(), parent.prefix(), tokens, static_cast<std::int32_t>(kv / page));
    parent = block;
  }
}

void RadixSlots::forget_all() {
  freed_.clear();
  tree_.reset(freed_);
  kv_.release(freed_.kv);
  tree_.release_slots(freed_.slots);
  std::ranges::fill(told_, std::uint8_t{0});
}

KvRow RadixSlots::kv_of(RequestId request) const {
  return {.ids = requests_[request.index()].row, .tokens_per_id = 1};
}

void RadixSlots::check() const {
  constexpr const char* structure = "RadixSlots";
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const Request& request = requests_[i];
    const RequestId id{static_cast<std::int32_t>(i)};
    if (!record(id).running) continue;
    rows += std::ssize(request.row) - request.protected_tokens;
    require_invariant(request.protected_tokens <= record(id).computed && std::ssize(request.row) >= record(id).computed,
                      structure, "a request computed more than it holds");
    require_invariant(tree_.contains(request.lock.node()), structure, "a locked node is gone");
    require_invariant(options_.separate_checkpoints || tree_.slots().owner(SlotId{request.live}) == SlotPool::caller,
                      structure, "the slot of a request has another owner");
  }
  std::size_t checkpoints = 0;
  for (const Request& request : requests_) checkpoints += std::size_t{request.loading.valid()};
  for (std::size_t p = 0; p < book_.passes.size(); ++p) checkpoints += book_.passes.at(p).save_slots.size();
  require_invariant(std::cmp_equal(checkpoints, checkpoint_slots_), structure, "a slot for a checkpoint is lost");
  const std::int64_t held = rows + tree_.sizes().total_tokens();
  require_invariant(kv_.available() + held == kv_.capacity(), structure, "KV is lost");
  const std::int64_t slots =
      tree_.sizes().total_states() + checkpoint_slots_ + (options_.separate_checkpoints ? 0 : book_.running);
  require_invariant(tree_.slots().free_slots() + slots == tree_.slots().capacity_slots(), structure, "a slot is lost");
  kv_.check_invariants();
  tree_.check_invariants();
}

}  // namespace stateport::detail
