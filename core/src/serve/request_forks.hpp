// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "serve/request_book.hpp"
#include "serve/request_index.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stateport::detail {

/// Forks: requests that go on from the computed tokens of another one, their point.
///
///     start ─► take_memory, before the first reserve() ─► begin, when the first pass was committed
///                 └─► take_over: the point has ended, and this is its last fork
///
/// Until a fork has begun, its point runs no pass: the fork reads the KV and the state of the point where they lie. A
/// fork copies nothing of its point before its first plan, not even tokens. A point that ends is kept until its forks
/// have begun. Nothing allocates after construction.
class RequestForks {
 public:
  /// The arguments must outlive it.
  RequestForks(RequestBook& book, RequestIndex& index);

  /// Throws: see RequestCache::fork.
  void check(const RequestRecord& point, std::span<const Token> tokens, std::size_t forks) const;
  /// The record's request begins with the computed tokens of its point, and with these. O(tokens).
  void start(RequestRecord& fork, const RequestRecord& point, std::span<const Token> tokens);
  /// The fork shares the KV of its point, and gets memory for its state. False: there is too little. The last fork of a
  /// point that has ended gets the memory of the point, and has begun. O(tokens of the point) the first time, then
  /// O(1).
  [[nodiscard]] bool take_memory(RequestId fork);
  /// The fork has begun, or it ends: it needs its point no longer.
  void begin(RequestId fork);
  /// Some fork has not begun.
  [[nodiscard]] bool any() const noexcept { return waiting_ > 0; }
  /// Forks of the request have not begun.
  [[nodiscard]] bool waits(RequestId request) const noexcept { return book_.fork_links[request.index()].forks > 0; }
  /// True: forks of the request have not begun. It ends when they have.
  [[nodiscard]] bool end_later(RequestId request);
  /// A request that ended, and whose forks have begun by now. None: there is none.
  [[nodiscard]] std::optional<RequestId> take_ended();
  /// The prompt and the sampled tokens of the request.
  [[nodiscard]] std::span<const Token> tokens(RequestId request) const;
  /// Throws std::logic_error naming the first broken invariant. O(requests).
  void check_invariants() const;

 private:
  void take_over(RequestId fork);

  RequestBook& book_;
  RequestIndex& index_;
  std::int32_t waiting_ = 0;      ///< forks that have not begun
  std::vector<RequestId> ended_;  ///< requests that ended and that no fork needs any longer
};

}  // namespace stateport::detail
