// SPDX-License-Identifier: Apache-2.0
// Numbers in comments are those of the rules that the golden files test.
#include "tree_requests.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <utility>

namespace stateport::test {

TreeRequests::TreeRequests(PrefixTree& tree, KvPagePool& kv, Options options)
    : tree_(tree), kv_(kv), options_(options) {
  require(kv.page_size() == tree.page_size(), "kv.page_size", kv.page_size(), "must be that of the tree");
  require(options.style == CheckpointStyle::donate_tracked || tree.page_size() == 1, "page_size", tree.page_size(),
          "must be 1 to copy live states: a chunk may end inside a larger page");
  require(options.track_interval >= 1 && options.track_interval % tree.page_size() == 0, "track_interval",
          options.track_interval, "must be whole pages");
}

const TreeRequests::Request& TreeRequests::checked(RequestId request) const {
  const bool runs = request.valid() && request.index() < requests_.size() && requests_[request.index()].id == request;
  require(runs, "request", request, "is not running");
  return requests_[request.index()];
}

TreeRequests::Request& TreeRequests::checked(RequestId request) {
  return const_cast<Request&>(std::as_const(*this).checked(request));
}

/// Stays free until it is taken out of the list.
RequestId TreeRequests::free_request() {
  if (free_requests_.empty()) {
    requests_.emplace_back();
    free_requests_.push_back(RequestId{std::ssize(requests_) - 1});
  }
  return free_requests_.back();
}

void TreeRequests::release_kv(std::span<const KvIndex> kv, Freed& freed) {
  kv_.release(kv);
  freed.kv.insert(freed.kv.end(), kv.begin(), kv.end());
}

void TreeRequests::release_slot(SlotId slot, Freed& freed) {
  if (!slot.valid()) return;
  tree_.release_slots({&slot, 1});
  freed.slots.push_back(slot);
}

void TreeRequests::evict(EvictDemand demand, Freed& freed) {
  scratch_.clear();
  tree_.evict(demand, scratch_);
  release_kv(scratch_.kv, freed);
  freed.slots.insert(freed.slots.end(), scratch_.slots.begin(), scratch_.slots.end());
}

bool TreeRequests::take_slots(std::span<SlotId> out, Freed& freed) {
  if (tree_.allocate_slots(out)) return true;
  evict({.tokens = 0, .states = static_cast<std::int64_t>(out.size())}, freed);  // no credit for free ones (31)
  return tree_.allocate_slots(out);
}

std::optional<TreeRequests::Started> TreeRequests::start(std::span<const Token> prompt, const Namespace& name_space,
                                                         Freed& freed) {
  require(!prompt.empty(), "prompt", std::int64_t{0}, "must have at least one token");
  const RequestId id = free_request();
  Request& request = requests_[id.index()];
  request = {};
  request.tokens.assign(prompt.begin(), prompt.end());
  request.prompt_tokens = prompt.size();
  request.name_space = name_space;
  request.row.resize(prompt.size());

  scratch_.clear();
  request.hit = tree_.match_with_live_slot(prompt.first(prompt.size() - 1), name_space, request.row, {}, scratch_);
  release_kv(scratch_.kv, freed);
  freed.slots.insert(freed.slots.end(), scratch_.slots.begin(), scratch_.slots.end());
  request.row.resize(static_cast<std::size_t>(request.hit.tokens));
  request.lock = tree_.lock(request.hit.node);
  request.live = request.hit.live_slot;
  const bool slots = (request.live.valid() || take_slots({&request.live, 1}, freed)) &&
                     (options_.style == CheckpointStyle::copy_live || take_slots(request.tracks, freed));
  if (!slots) {
    if (request.live.valid()) tree_.release_slots({&request.live, 1});
    request = {};
    return std::nullopt;
  }
  free_requests_.pop_back();
  request.id = id;
  request.protected_tokens = request.hit.tokens;
  request.branching = request.hit.branching_position;
  Started started{.request = id,
                  .live_slot = request.live,
                  .prefix_tokens = request.hit.tokens,
                  .branching_position = request.branching,
                  .restore = std::nullopt,
                  .lost = request.hit.lost};
  if (request.hit.slot.valid()) started.restore = request.hit.restore_into(request.live);
  return started;
}

bool TreeRequests::grow_row(Request& request, std::int64_t upto, Freed& freed) {
  const std::size_t before = request.row.size();
  const auto page = static_cast<std::size_t>(kv_.page_size());
  request.row.resize(static_cast<std::size_t>(upto));
  std::size_t filled = before;
  for (; filled < request.row.size() && filled % page != 0; ++filled) request.row[filled] = request.row[filled - 1] + 1;
  const auto rest = std::span(request.row).subspan(filled);
  if (kv_.allocate(rest)) return true;
  evict({.tokens = static_cast<std::int64_t>(rest.size()), .states = 0}, freed);  // the full need, once (32)
  if (kv_.allocate(rest)) return true;
  request.row.resize(before);
  return false;
}

std::optional<TreeRequests::Track> TreeRequests::plan_track(const Request& request, std::int64_t upto) const {
  if (options_.style == CheckpointStyle::copy_live) return std::nullopt;
  const std::int64_t start = request.computed();
  const std::int64_t step = tree_.track_step();
  if (upto - start < step) return std::nullopt;
  Track track{.position = start + (upto - start) / tree_.grid() * tree_.grid(), .slot = {}};
  if (request.branching && start < *request.branching && *request.branching < upto &&
      (*request.branching - start) % step == 0) {
    track.position = *request.branching;
    track.at_branching = true;
  }
  // After a chunk that ended inside a page no position of the grid ends a page: such a state cannot be kept (14).
  if (track.position % tree_.page_size() != 0) return std::nullopt;
  return track;
}

void TreeRequests::note_track(Request& request, Track& track) {
  track.slot = request.tracks[request.next_track];
  request.kept_track = request.next_track;
  request.next_track = 1 - request.next_track;
  request.tracked = track.position;
}

std::optional<TreeRequests::ExtendPlan> TreeRequests::extend(RequestId id, std::int64_t upto, Freed& freed) {
  Request& request = checked(id);
  const std::int64_t start = request.computed();
  require(upto > start && upto <= static_cast<std::int64_t>(request.prompt_tokens), "upto", upto,
          "must be a position of the prompt that is not computed yet");
  std::optional<Track> track = plan_track(request, upto);
  if (!grow_row(request, upto, freed)) return std::nullopt;
  ExtendPlan plan{.start = start, .kv = std::span(request.row).subspan(static_cast<std::size_t>(start))};
  if (request.live_state_pending) {
    // The hit is locked since it was found, so its slot still holds its state (25).
    if (request.hit.slot.valid())
      plan.restore = request.hit.restore_into(request.live);
    else
      plan.clear = request.live;
    request.live_state_pending = false;
  }
  if (track) note_track(request, *track);
  plan.track = track;
  return plan;
}

InsertResult TreeRequests::donate(const Request& request, SlotId slot, const Donation& donation, Freed& freed) {
  const auto count = static_cast<std::size_t>(donation.tokens);
  const auto key = std::span(request.tokens).first(count);
  if (slot.valid()) tree_.tag_slot(slot, tree_.state_tag(key, request.name_space));
  scratch_.clear();
  const InsertResult inserted =
      tree_.insert({.tokens = key,
                    .kv = std::span(request.row).first(count),
                    .slot = slot,
                    .name_space = request.name_space,
                    .prev_tokens = request.protected_tokens,
                    .chunked = donation.chunked,
                    // A running request gets longer.
                    .prompt = {.tokens = donation.finished ? 0 : std::ssize(request.tokens) + 1,
                               .past = request.hit.past,
                               .hint = donation.hint}},
                   scratch_);
  release_kv(scratch_.kv, freed);
  freed.slots.insert(freed.slots.end(), scratch_.slots.begin(), scratch_.slots.end());
  return inserted;
}

TreeRequests::Cached TreeRequests::cache_unfinished(RequestId id, bool chunked, Freed& freed) {
  Request& request = checked(id);
  const bool copies = options_.style == CheckpointStyle::copy_live;
  Cached cached{.protected_tokens = request.protected_tokens};
  if (request.live_state_pending || (!copies && !request.tracked)) return cached;
  drop_decode_plan(request, freed);
  SlotId fresh;
  if (!take_slots({&fresh, 1}, freed)) {
    ++dropped_checkpoints_;
    request.tracked.reset();
    return cached;
  }
  const std::int64_t length = copies ? request.computed() : *request.tracked;
  SlotId donated = fresh;
  if (copies)
    cached.checkpoint = SlotCopy::whole(request.live, fresh);
  else
    std::swap(donated, request.tracks[request.kept_track]);
  cached.adopted = !donate(request, donated, {.tokens = length, .chunked = chunked}, freed).state_exists;
  if (!cached.adopted) release_slot(donated, freed);

  // From here on the request reads the tree's KV and holds the longer path.
  const auto key = std::span(request.tokens).first(static_cast<std::size_t>(length));
  const auto row = std::span(request.row).first(static_cast<std::size_t>(length));
  const PrefixMatch kept = tree_.match(key, request.name_space, row, Lookup::again);
  request.lock = tree_.lock(kept.node);
  request.protected_tokens = cached.protected_tokens = kept.tokens;
  request.tracked.reset();
  return cached;
}

std::optional<TreeRequests::DecodePlan> TreeRequests::plan_decode(RequestId id, std::int64_t drafts, Freed& freed) {
  Request& request = checked(id);
  require(drafts >= 0, "drafts", drafts, "must not be negative");
  const std::int64_t start = request.computed() - request.planned;
  require_state(start >= static_cast<std::int64_t>(request.prompt_tokens) &&
                    start + 1 == static_cast<std::int64_t>(request.tokens.size()),
                "plan_decode", "request", id.value(), "has no output token to feed");
  const std::int64_t upto = start + 1 + drafts;
  drop_decode_plan(request, freed);
  if (!grow_row(request, upto, freed)) return std::nullopt;
  request.planned = 1 + drafts;
  DecodePlan plan{.kv = std::span(request.row).subspan(static_cast<std::size_t>(start)), .track = std::nullopt};
  const std::int64_t position = (start / options_.track_interval + 1) * options_.track_interval;
  if (options_.style == CheckpointStyle::donate_tracked && position <= request.computed())
    plan.track = Track{.position = position, .slot = request.tracks[request.next_track]};
  request.decode_track = plan.track;
  return plan;
}

bool TreeRequests::append(RequestId id, std::span<const Token> sampled, Freed& freed) {
  Request& request = checked(id);
  const auto count = static_cast<std::int64_t>(sampled.size());
  const bool first = request.planned == 0 && request.computed() >= static_cast<std::int64_t>(request.prompt_tokens) &&
                     request.computed() == static_cast<std::int64_t>(request.tokens.size());
  require_state(first || request.planned > 0, "append", "request", id.value(), "has run no pass that samples");
  require(count >= 1 && count <= (first ? 1 : request.planned), "sampled", count,
          "must be at least one token and no more than the pass fed");
  request.tokens.insert(request.tokens.end(), sampled.begin(), sampled.end());
  if (first) return false;
  shrink_row(request, request.computed() - request.planned + count, freed);
  request.planned = 0;
  const bool tracked = request.decode_track && request.decode_track->position <= request.computed();
  if (tracked) note_track(request, *request.decode_track);
  request.decode_track.reset();
  return tracked;
}

/// Gives back the pages that lie beyond `upto` as a whole.
void TreeRequests::shrink_row(Request& request, std::int64_t upto, Freed& freed) {
  const std::int64_t page = kv_.page_size();
  const auto kept = static_cast<std::size_t>((upto + page - 1) / page * page);
  if (kept < request.row.size()) release_kv(std::span(request.row).subspan(kept), freed);
  request.row.resize(static_cast<std::size_t>(upto));
}

void TreeRequests::drop_decode_plan(Request& request, Freed& freed) {
  shrink_row(request, request.computed() - request.planned, freed);
  request.planned = 0;
  request.decode_track.reset();
}

void TreeRequests::finish(RequestId id, Freed& freed, const ReuseHint& hint) {
  Request& request = checked(id);
  check_hint(hint);
  drop_decode_plan(request, freed);
  const bool copies = options_.style == CheckpointStyle::copy_live;
  const std::int64_t length = copies ? request.computed() : request.tracked.value_or(0);
  SlotId donated = copies ? request.live : request.tracks[request.kept_track];
  if (copies && request.live_state_pending) donated = {};  // the copy into it has not run (25)
  // Without a tracked state there is nothing to keep: an empty key changes nothing.
  const Donation donation{.tokens = length, .finished = true, .hint = hint};
  const bool adopted = length > 0 && !donate(request, donated, donation, freed).state_exists;
  end(request, adopted ? donated : SlotId{}, std::max(length, request.protected_tokens), freed);
  free_requests_.push_back(id.next());
}

void TreeRequests::abort(RequestId id, Freed& freed) {
  Request& request = checked(id);
  drop_decode_plan(request, freed);
  end(request, {}, request.protected_tokens, freed);
  free_requests_.push_back(id.next());
}

void TreeRequests::end(Request& request, SlotId adopted, std::int64_t kept_tokens, Freed& freed) {
  const std::int64_t page = kv_.page_size();
  release_kv(std::span(request.row).subspan(static_cast<std::size_t>(kept_tokens / page * page)), freed);
  request.lock.release();
  for (const SlotId slot : {request.live, request.tracks[0], request.tracks[1]})
    if (slot != adopted) release_slot(slot, freed);
  request = {};
}

void TreeRequests::check_invariants() const {
  constexpr const char* structure = "TreeRequests";
  for (const Request& request : requests_) {
    if (!request.id.valid()) continue;
    const std::int64_t computed = request.computed() - request.planned;
    require_invariant(request.protected_tokens <= computed && std::cmp_less_equal(computed, request.tokens.size()),
                      structure, "a request holds more than it computed");
    require_invariant(tree_.contains(request.lock.node()), structure, "a locked node is gone");
    for (const SlotId slot : {request.live, request.tracks[0], request.tracks[1]})
      require_invariant(!slot.valid() || tree_.slots().owner(slot) == SlotPool::caller, structure,
                        "a slot of a request has another owner");
  }
  kv_.check_invariants();
  tree_.check_invariants();
}

}  // namespace stateport::test
