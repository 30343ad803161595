// SPDX-License-Identifier: Apache-2.0
#include "serve/request_forks.hpp"

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>

#include <algorithm>

namespace stateport::detail {

RequestForks::RequestForks(RequestBook& book, RequestIndex& index) : book_(book), index_(index) {
  ended_.reserve(book.records.size());
}

void RequestForks::check(const RequestRecord& point, std::span<const Token> tokens, std::size_t forks) const {
  require(forks > 0, "forks", forks, "must be at least 1");
  require(!tokens.empty() && tokens.size() % forks == 0, "tokens", tokens.size(),
          "must be the same number for each fork, at least 1");
  const auto each = static_cast<std::int64_t>(tokens.size() / forks);
  require(each <= book_.options.max_request_tokens - point.computed, "tokens", tokens.size(),
          "make a fork longer than max_request_tokens");
  const RequestId id = point.id;
  require_state(!point.is_fork, "fork", "request", id.value(), "is a fork that has not begun");
  require_state(point.computed >= point.prompt_tokens, "fork", "request", id.value(), "has not computed its prompt");
  require_state(!book_.passes.has(id), "fork", "request", id.value(), "is in an outstanding pass");
}

/// A single token is taken as sampled, as if the point had sampled it. More are a prompt.
void RequestForks::start(RequestRecord& fork, const RequestRecord& point, std::span<const Token> tokens) {
  fork.tokens.skip(static_cast<std::size_t>(point.computed));
  fork.tokens.append(tokens);
  fork.computed = point.computed;
  fork.prompt_tokens = tokens.size() == 1 ? point.computed : std::ssize(fork.tokens.all());
  fork.begun = false;
  fork.quiet_until = 0;
  fork.stale = point.stale;
  fork.tag = point.tag;
  fork.tail_tokens = point.tail_tokens;
  fork.name_space = point.name_space;
  fork.media = point.media;
  fork.hint = point.hint;
  fork.kv = {};
  fork.is_fork = true;
  fork.has_memory = false;
  book_.set_breakpoints(fork.id, {});
  const std::int64_t whole_blocks = floor_to(point.computed, std::int64_t{book_.options.block_size_tokens});
  book_.opened[fork.id.index()] = {.reused_tokens = whole_blocks, .cached_tokens = whole_blocks};
  book_.fork_links[fork.id.index()].point = point.id;
  ++book_.fork_links[point.id.index()].forks;
  book_.records[point.id.index()].quiet_until = 0;
  ++waiting_;
}

bool RequestForks::take_memory(RequestId fork) {
  RequestRecord& record = book_.records[fork.index()];
  const RequestId point = book_.point_of(fork);
  const bool is_last = book_.record(point).ending && book_.fork_links[point.index()].forks == 1;
  // An outstanding pass of the fork writes to the memory that it has.
  if (is_last && !book_.passes.has(fork)) {
    take_over(fork);
    return true;
  }
  if (record.has_memory) return true;
  static_cast<void>(tokens(fork));
  record.has_memory = index_.fork(fork, point, false);
  return record.has_memory;
}

/// It goes on as its point would have.
void RequestForks::take_over(RequestId fork) {
  RequestRecord& record = book_.records[fork.index()];
  const RequestId point = book_.point_of(fork);
  static_cast<void>(tokens(fork));
  if (record.has_memory) {
    index_.close(fork, RequestEnd::aborted, {});
    book_.ask(fork);
  }
  static_cast<void>(index_.fork(fork, point, true));
  std::ranges::copy(book_.states.of(point), book_.states.of(fork).begin());
  record.begun = true;
  begin(fork);
}

void RequestForks::begin(RequestId fork) {
  book_.records[fork.index()].is_fork = false;
  const RequestId point = book_.point_of(fork);
  --waiting_;
  if (--book_.fork_links[point.index()].forks == 0 && book_.record(point).ending) ended_.push_back(point);
  index_.note_memory(fork);
}

bool RequestForks::end_later(RequestId request) {
  RequestRecord& record = book_.records[request.index()];
  record.ending = waits(request);
  return record.ending;
}

std::optional<RequestId> RequestForks::take_ended() {
  if (ended_.empty()) return std::nullopt;
  const RequestId id = ended_.back();
  ended_.pop_back();
  return id;
}

/// Those of the point are copied when they are asked for.
std::span<const Token> RequestForks::tokens(RequestId request) const {
  const RequestRecord& record = book_.record(request);
  if (!record.has_kv()) record.tokens.fill_skipped(book_.record(book_.point_of(request)).tokens.first(record.computed));
  return record.tokens.all();
}

void RequestForks::check_invariants() const {
  constexpr const char* structure = "RequestForks";
  std::int32_t waiting = 0;
  std::vector<std::int32_t> forks(book_.records.size());
  for (const RequestRecord& record : book_.records) {
    if (!record.running || !record.is_fork) continue;
    const RequestRecord& point = book_.record(book_.point_of(record.id));
    ++forks[point.id.index()];
    ++waiting;
    require_invariant(point.running && point.id == book_.point_of(record.id), structure,
                      "a fork outlives the request that it goes on from");
    require_invariant(!record.begun && record.computed == point.computed, structure,
                      "a fork and the request that it goes on from have computed different tokens");
  }
  for (std::size_t i = 0; i < forks.size(); ++i)
    require_invariant(forks[i] == book_.fork_links[i].forks, structure, "a request has another number of forks");
  require_invariant(waiting == waiting_, structure, "the forks that have not begun are counted wrong");
  require_invariant(ended_.empty(), structure, "a request that no fork needs has not ended");
}

}  // namespace stateport::detail
