// SPDX-License-Identifier: Apache-2.0
#include "serve/prefix_waits.hpp"

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>

#include <algorithm>

namespace stateport::detail {
namespace {

/// The number of leading blocks that two prompts share. Hashes are chained: where one differs, all later ones do.
std::int64_t shared_blocks(std::span<const PrefixHash> a, std::span<const PrefixHash> b) {
  std::size_t low = 0;
  std::size_t high = std::min(a.size(), b.size());
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (a[middle] == b[middle])
      low = middle + 1;
    else
      high = middle;
  }
  return static_cast<std::int64_t>(low);
}

}  // namespace

PrefixWaits::PrefixWaits(RequestBook& book, RequestIndex& index)
    : book_(book), index_(index), options_(book.options.share_running), requests_(book.records.size()) {
  waiting_.reserve(requests_.size());
}

void PrefixWaits::start(RequestId request) {
  requests_[request.index()] = {.wait = {}, .order = ++starts_, .is_computing = true};
}

std::span<const PrefixHash> PrefixWaits::prefixes_of(RequestId request) {
  const std::int64_t prompt = book_.record(request).prompt_tokens;
  const auto blocks = static_cast<std::size_t>(prompt / book_.options.block_size_tokens);
  return index_.hashes_of(request, prompt).prefixes().first(blocks);
}

/// The deepest position from `least` to `most` tokens where the other request can leave a checkpoint for those that
/// wait; 0: there is none. Passes that are planned leave none. A request that waits itself, or loads, begins behind
/// that.
std::int64_t PrefixWaits::place_wait(RequestId other, std::int64_t least, std::int64_t most) const {
  const RequestRecord& record = book_.record(other);
  const std::int64_t planned = book_.passes.bounds(other, record.computed, book_.passes.size()).high;
  least = std::max({least, planned + 1, wait_of(other).tokens + 1, book_.opened_of(other).loading_tokens + 1});
  const std::int64_t at = floor_to(std::min(most, record.prompt_tokens), book_.grid_tokens);
  if (at < least) return 0;
  if (book_.can_await(other, at)) return at;
  std::int64_t place = 0;
  for (const std::int64_t named : book_.breakpoints_of(other))
    if (named >= least && named <= at) place = named;
  return place;
}

void PrefixWaits::consider(RequestId id) {
  Request& request = requests_[id.index()];
  const RequestRecord& mine = book_.record(id);
  if (mine.stale || (request.until > 0 && commits_ >= request.until)) return;
  const std::int64_t usable = mine.prompt_tokens - 1;
  if (usable - mine.computed < options_.least_tokens) return;
  const std::int64_t least = mine.computed + options_.least_tokens;
  const std::span<const PrefixHash> prefixes = prefixes_of(id);
  std::uint64_t order = 0;  // of the request to wait for
  PrefixWait wait;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const RequestRecord& other = book_.records[i];
    if (!requests_[i].is_computing || requests_[i].order >= request.order || other.prompt_tokens < least) continue;
    if (other.computed >= other.prompt_tokens) continue;
    const std::int64_t shared = shared_blocks(prefixes, prefixes_of(other.id)) * book_.options.block_size_tokens;
    const std::int64_t at = place_wait(other.id, least, std::min(shared, usable));
    if (at < wait.tokens || at == 0 || (at == wait.tokens && requests_[i].order > order)) continue;
    wait = {.request = other.id, .tokens = at};
    order = requests_[i].order;
  }
  if (wait.tokens == 0) return;
  book_.await(wait.request, wait.tokens);
  request.wait = wait;
  if (request.until == 0) request.until = commits_ + static_cast<std::uint64_t>(options_.longest_commits);
  const auto order_of = [&](RequestId waiting) { return requests_[waiting.index()].order; };
  waiting_.insert(std::ranges::lower_bound(waiting_, request.order, {}, order_of), id);
}

void PrefixWaits::end(RequestId id) noexcept {
  Request& request = requests_[id.index()];
  request.is_computing = false;
  if (!waits(id)) return;
  request.wait = {};
  std::erase(waiting_, id);
}

bool PrefixWaits::is_over(RequestId id) const {
  const Request& request = requests_[id.index()];
  const RequestRecord& other = book_.record(request.wait.request);
  const bool is_computing = requests_[request.wait.request.index()].is_computing && other.id == request.wait.request;
  return !is_computing || other.computed >= request.wait.tokens || commits_ >= request.until || book_.record(id).stale;
}

std::optional<RequestId> PrefixWaits::take_over() {
  const auto over = std::ranges::find_if(waiting_, [&](RequestId id) { return is_over(id); });
  if (over == waiting_.end()) return std::nullopt;
  const RequestId id = *over;
  waiting_.erase(over);
  requests_[id.index()].wait = {};
  return id;
}

void PrefixWaits::check() const {
  constexpr const char* structure = "PrefixWaits";
  std::size_t waiting = 0;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const Request& request = requests_[i];
    if (request.wait.tokens == 0) continue;
    ++waiting;
    const RequestRecord& mine = book_.records[i];
    require_invariant(mine.running && !mine.begun, structure, "a request that waits has begun, or does not run");
    require_invariant(std::ranges::find(waiting_, mine.id) != waiting_.end(), structure, "a wait is lost");
    require_invariant(requests_[request.wait.request.index()].order < request.order, structure,
                      "a request waits for a later one");
    // A load or a change of weights ends waits with the next commit or end.
    const RequestRecord& other = book_.record(request.wait.request);
    require_invariant(!is_over(mine.id) || mine.stale || other.stale || !other.begun, structure,
                      "a request still waits, and its wait is over");
  }
  require_invariant(waiting == waiting_.size(), structure, "a wait is counted twice");
}

void require_share_running(const RequestCacheOptions& options) {
  const ShareRunning& share = options.share_running;
  require(share.least_tokens >= 0, "share_running.least_tokens", share.least_tokens, "must not be negative");
  require(share.longest_commits >= 1, "share_running.longest_commits", share.longest_commits, "must be at least 1");
  require(share.least_tokens == 0 || !in_columns(options) || column_layout(options).mode != AlignMode::none,
          "share_running.least_tokens", share.least_tokens, "is set, and mode none keeps no state that is found again");
}

}  // namespace stateport::detail
