// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/prompt_facts.hpp>
#include <stateport/core/pool/memory_move.hpp>
#include <stateport/core/serve/cache_options.hpp>
#include <stateport/core/serve/cache_sessions.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::detail {

/// Which session owns which KV and which states, and the sessions whose contents are demoted.
///
/// KV is named by block or page, a state by its group and its number. Each has a mark: the session that made it, or
/// none if it is free, shared or without a session. A session that replaces another one in the table has another mark,
/// so that contents of the one that was replaced have no session from then on.
class SessionBook final : public CacheSessions {
 public:
  explicit SessionBook(const RequestCacheOptions& options);

  bool close(std::uint64_t session) override;
  [[nodiscard]] SessionUsage usage(std::uint64_t session) const override;
  [[nodiscard]] std::int64_t closed_sessions() const noexcept override { return closed_; }

  /// A request starts. Its session, if it has one, is open from now on, and the request asks for memory. Closes the
  /// sessions that were idle for too long.
  void begin(RequestId request, std::uint64_t session, double now_s);
  /// A request ends with this hint.
  void end(RequestId request, const ReuseHint& hint, double now_s);
  /// The request asks for memory, from now on.
  void ask(RequestId request) noexcept { asker_ = request_marks_[request.index()]; }

  /// The asking request gets this KV.
  void take_kv(std::int32_t number) noexcept { enter(kv_marks_[static_cast<std::size_t>(number)], kv_, asker_); }
  void give_kv(std::int32_t number) noexcept { enter(kv_marks_[static_cast<std::size_t>(number)], kv_, no_mark); }
  void move_kv(std::int32_t from, std::int32_t to) noexcept;
  /// The request reuses this KV, or this state: it belongs to no session unless that is the request's.
  void reuse_kv(RequestId request, std::int32_t number) noexcept;
  void reuse_state(RequestId request, std::size_t group, SlotId state) noexcept;
  /// A state was made behind this KV, whose session it belongs to; or it was lost.
  void take_state(std::size_t group, SlotId state, std::int32_t kv_number) noexcept;
  void give_state(std::size_t group, SlotId state) noexcept;
  /// Nothing is cached any more.
  void clear_contents() noexcept;

  /// Some session has contents that are demoted. O(1).
  [[nodiscard]] bool demotes() const noexcept { return demoted_sessions_ > 0; }
  [[nodiscard]] bool is_demoted_kv(std::int32_t number) const noexcept {
    return is_demoted(kv_marks_[static_cast<std::size_t>(number)]);
  }
  /// The next demoted KV, or state of the group, for which `eligible(number)`; -1: there is none. Goes round the
  /// numbers, so that a search does not begin anew with those that it passed over. After a search without success none
  /// follows until something is unlocked or demoted. O(numbers).
  template <class Eligible>
  [[nodiscard]] std::int32_t next(MemoryPart part, std::size_t group, const Eligible& eligible) {
    Search& search = part == MemoryPart::kv ? kv_search_ : state_searches_[group];
    if (!demotes() || search.failed_at == changes_) return -1;
    const Marks& marks = part == MemoryPart::kv ? kv_marks_ : state_marks_[group];
    const auto count = static_cast<std::int32_t>(marks.size());
    for (std::int32_t i = 0; i < count; ++i) {
      search.at = search.at + 1 < count ? search.at + 1 : 0;
      if (is_demoted(marks[static_cast<std::size_t>(search.at)]) && eligible(search.at)) return search.at;
    }
    search.failed_at = changes_;
    return -1;
  }
  /// Contents may have become eligible.
  void note_change() noexcept { ++changes_; }
  /// Throws std::logic_error naming the first broken invariant. O(all).
  void check() const;

 private:
  using Mark = std::uint32_t;
  using Marks = std::vector<Mark>;
  static constexpr Mark no_mark = 0;
  static constexpr std::size_t ways = 8;  ///< sessions that compete for a place in the table

  struct Session {
    std::uint64_t id = 0;  ///< 0: the place is free
    Mark mark = no_mark;
    bool closed = false;
    bool counted = false;  ///< in demoted_sessions_
    double heard_s = 0;
    std::array<std::int64_t, memory_part_count> numbers = {};  ///< that it owns, by part
  };
  struct Search {
    std::int32_t at = -1;
    std::uint64_t failed_at = 0;
  };

  static constexpr auto kv_ = static_cast<std::size_t>(MemoryPart::kv);
  static constexpr auto states_ = static_cast<std::size_t>(MemoryPart::states);

  [[nodiscard]] Session* find(std::uint64_t id) noexcept;
  [[nodiscard]] const Session* find(std::uint64_t id) const noexcept;
  [[nodiscard]] std::span<Session> places_of(std::uint64_t id) noexcept;
  [[nodiscard]] Session& open(std::uint64_t id);
  [[nodiscard]] Session* of(Mark mark) noexcept;
  [[nodiscard]] bool is_demoted(Mark mark) const noexcept {
    if (mark == no_mark) return false;
    const Session& session = table_[(mark - 1) & (table_.size() - 1)];
    return session.mark == mark && session.counted;
  }
  [[nodiscard]] std::int64_t bytes_of(const Session& session) const noexcept;
  void enter(Mark& mark, std::size_t part, Mark now) noexcept;
  void count(Session& session) noexcept;
  void close(Session& session) noexcept;
  void close_idle(double now_s) noexcept;

  const RequestCacheOptions& options_;
  std::int64_t groups_;
  std::vector<Session> table_;
  std::vector<Mark> request_marks_;  ///< by row of the index
  Marks kv_marks_;
  std::vector<Marks> state_marks_;  ///< by group
  Search kv_search_;
  std::vector<Search> state_searches_;
  Mark asker_ = no_mark;
  std::uint32_t replaced_ = 0;
  std::int64_t demoted_sessions_ = 0;  ///< with contents
  std::int64_t closed_ = 0;
  std::uint64_t changes_ = 1;
  double next_idle_s_ = 0;  ///< no open session is idle for too long before
};

/// Throws InvalidArgument unless such a cache can have these SessionOptions.
void require_session_options(const RequestCacheOptions& options);

}  // namespace stateport::detail
