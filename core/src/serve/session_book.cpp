// SPDX-License-Identifier: Apache-2.0
#include "serve/session_book.hpp"

#include <stateport/core/model/error.hpp>

#include "serve/request_options.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

namespace stateport::detail {

SessionBook::SessionBook(const RequestCacheOptions& options)
    : options_(options),
      groups_(static_cast<std::int64_t>(group_count(options))),
      table_(std::bit_ceil(std::max(static_cast<std::size_t>(options.sessions.remembered), ways))),
      request_marks_(index_rows(options), no_mark),
      kv_marks_(static_cast<std::size_t>(kv_blocks(options)) + 1, no_mark),
      state_searches_(group_count(options)) {
  for (std::size_t g = 0; g < group_count(options); ++g)
    state_marks_.emplace_back(static_cast<std::size_t>(checkpoint_slots(options, g)) + reserved_state_blocks, no_mark);
}

std::span<SessionBook::Session> SessionBook::places_of(std::uint64_t id) noexcept {
  constexpr std::uint64_t golden = 0x9e37'79b9'7f4a'7c15;  // Fibonacci hashing: numbers in a row spread
  const std::size_t sets = table_.size() / ways;
  const std::size_t set = static_cast<std::size_t>((id * golden) >> 32) & (sets - 1);
  return std::span(table_).subspan(set * ways, ways);
}

SessionBook::Session* SessionBook::find(std::uint64_t id) noexcept {
  const std::span<Session> places = places_of(id);
  const auto place = std::ranges::find(places, id, &Session::id);
  return place == places.end() ? nullptr : &*place;
}

const SessionBook::Session* SessionBook::find(std::uint64_t id) const noexcept {
  return const_cast<SessionBook*>(this)->find(id);
}

SessionBook::Session* SessionBook::of(Mark mark) noexcept {
  if (mark == no_mark) return nullptr;
  Session& session = table_[(mark - 1) & (table_.size() - 1)];
  return session.mark == mark ? &session : nullptr;
}

std::int64_t SessionBook::bytes_of(const Session& session) const noexcept {
  return options_.memory.of(session.numbers[kv_] * options_.block_size_tokens, 0) +
         options_.memory.of(0, session.numbers[states_]) / groups_;
}

/// Something about the session has changed: it has contents that are demoted, or not.
void SessionBook::count(Session& session) noexcept {
  const std::int64_t most = options_.sessions.most_bytes;
  const bool has_contents = session.numbers[kv_] + session.numbers[states_] > 0;
  const bool demoted = has_contents && (session.closed || (most > 0 && bytes_of(session) > most));
  if (demoted && !session.counted) note_change();
  demoted_sessions_ += std::int64_t{demoted} - std::int64_t{session.counted};
  session.counted = demoted;
}

void SessionBook::enter(Mark& mark, std::size_t part, Mark now) noexcept {
  if (mark == now) return;
  if (Session* const before = of(std::exchange(mark, now))) {
    --before->numbers[part];
    count(*before);
  }
  if (Session* const after = of(now)) {
    ++after->numbers[part];
    count(*after);
  }
}

/// The session that was not heard of for the longest time makes room, closed ones first.
SessionBook::Session& SessionBook::open(std::uint64_t id) {
  if (Session* const known = find(id)) {
    known->closed = false;
    count(*known);
    return *known;
  }
  const std::span<Session> places = places_of(id);
  const auto rank = [](const Session& session) {
    return std::pair(session.id > 0 && !session.closed, session.heard_s);
  };
  Session& place = *std::ranges::min_element(places, {}, rank);
  demoted_sessions_ -= place.counted;
  const auto at = static_cast<Mark>(&place - table_.data());
  place = {.id = id, .mark = ++replaced_ * static_cast<Mark>(table_.size()) + at + 1};
  if (place.mark == no_mark) place.mark = ++replaced_ * static_cast<Mark>(table_.size()) + at + 1;
  return place;
}

void SessionBook::begin(RequestId request, std::uint64_t id, double now_s) {
  close_idle(now_s);
  asker_ = request_marks_[request.index()] = no_mark;
  if (id == 0) return;
  Session& session = open(id);
  session.heard_s = now_s;
  if (options_.sessions.idle_s > 0) next_idle_s_ = std::min(next_idle_s_, now_s + options_.sessions.idle_s);
  asker_ = request_marks_[request.index()] = session.mark;
}

void SessionBook::end(RequestId request, const ReuseHint& hint, double now_s) {
  note_change();
  Session* const session = of(request_marks_[request.index()]);
  if (session == nullptr) return;
  session->heard_s = now_s;
  if (hint.last_turn) close(*session);
}

void SessionBook::close(Session& session) noexcept {
  closed_ += !session.closed;
  session.closed = true;
  count(session);
}

bool SessionBook::close(std::uint64_t id) {
  require(id > 0, "session", id, "is no session");
  Session* const session = find(id);
  if (session == nullptr || session->closed) return false;
  close(*session);
  return true;
}

void SessionBook::close_idle(double now_s) noexcept {
  const double idle_s = options_.sessions.idle_s;
  if (idle_s == 0 || now_s < next_idle_s_) return;
  next_idle_s_ = std::numeric_limits<double>::infinity();
  for (Session& session : table_) {
    if (session.id == 0 || session.closed) continue;
    if (session.heard_s + idle_s <= now_s)
      close(session);
    else
      next_idle_s_ = std::min(next_idle_s_, session.heard_s + idle_s);
  }
}

SessionUsage SessionBook::usage(std::uint64_t id) const {
  require(id > 0, "session", id, "is no session");
  const Session* const session = find(id);
  if (session == nullptr) return {};
  return {.is_open = !session->closed,
          .kv_tokens = session->numbers[kv_] * options_.block_size_tokens,
          .states = session->numbers[states_],
          .bytes = bytes_of(*session)};
}

void SessionBook::move_kv(std::int32_t from, std::int32_t to) noexcept {
  enter(kv_marks_[static_cast<std::size_t>(to)], kv_, kv_marks_[static_cast<std::size_t>(from)]);
  give_kv(from);
}

void SessionBook::reuse_kv(RequestId request, std::int32_t number) noexcept {
  Mark& mark = kv_marks_[static_cast<std::size_t>(number)];
  if (mark != request_marks_[request.index()]) enter(mark, kv_, no_mark);
}

void SessionBook::reuse_state(RequestId request, std::size_t group, SlotId state) noexcept {
  Mark& mark = state_marks_[group][state.index()];
  if (mark != request_marks_[request.index()]) enter(mark, states_, no_mark);
}

void SessionBook::take_state(std::size_t group, SlotId state, std::int32_t kv_number) noexcept {
  enter(state_marks_[group][state.index()], states_, kv_marks_[static_cast<std::size_t>(kv_number)]);
}

void SessionBook::give_state(std::size_t group, SlotId state) noexcept {
  enter(state_marks_[group][state.index()], states_, no_mark);
}

void SessionBook::clear_contents() noexcept {
  for (Mark& mark : kv_marks_) enter(mark, kv_, no_mark);
  for (Marks& marks : state_marks_)
    for (Mark& mark : marks) enter(mark, states_, no_mark);
}

void SessionBook::check() const {
  constexpr const char* structure = "SessionBook";
  SessionBook counted(*this);
  for (Session& session : counted.table_) session.numbers = {};
  const auto add = [&](const Marks& marks, std::size_t part) {
    for (const Mark mark : marks)
      if (Session* const session = counted.of(mark)) ++session->numbers[part];
  };
  add(kv_marks_, kv_);
  for (const Marks& marks : state_marks_) add(marks, states_);
  std::int64_t demoted = 0;
  for (std::size_t i = 0; i < table_.size(); ++i) {
    const Session& session = table_[i];
    require_invariant(session.numbers == counted.table_[i].numbers, structure, "a session owns what is not marked");
    require_invariant((session.id == 0) == (session.mark == no_mark), structure, "a place has a mark and no session");
    const std::int64_t most = options_.sessions.most_bytes;
    const bool is_demoted = session.numbers[kv_] + session.numbers[states_] > 0 &&
                            (session.closed || (most > 0 && bytes_of(session) > most));
    require_invariant(session.counted == is_demoted, structure, "a session is demoted for no reason, or is not");
    demoted += is_demoted;
  }
  require_invariant(demoted == demoted_sessions_, structure, "a demoted session is counted twice");
}

void require_session_options(const RequestCacheOptions& options) {
  const SessionOptions& sessions = options.sessions;
  constexpr std::int32_t most = 1 << 20;
  require(sessions.remembered >= 0 && sessions.remembered <= most, "sessions.remembered", sessions.remembered,
          "must be from 0 to 1048576");
  require(std::isfinite(sessions.idle_s) && sessions.idle_s >= 0, "sessions.idle_s", sessions.idle_s,
          "must be finite and not negative");
  require(sessions.most_bytes >= 0, "sessions.most_bytes", sessions.most_bytes, "must not be negative");
}

}  // namespace stateport::detail
