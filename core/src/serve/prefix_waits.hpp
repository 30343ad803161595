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

/// Requests that wait until another request has computed the prefix that both share
/// (RequestCacheOptions::share_running). A request waits only for one that started before it, so no cycle forms. The
/// position where a wait ends is a breakpoint of the request that computes. Nothing allocates after construction.
class PrefixWaits {
 public:
  /// The arguments must outlive it.
  PrefixWaits(RequestBook& book, RequestIndex& index);

  /// The request started: later ones may wait for it.
  void start(RequestId request);
  /// The request waits if an earlier one is computing enough of its prompt. O(requests * log(blocks)).
  void consider(RequestId request);
  /// The request ends: it waits no longer, and the waits for it are over.
  void end(RequestId request) noexcept;
  /// A pass was committed.
  void count_commit() noexcept { ++commits_; }
  /// A request whose wait is over, and which waits no longer; the earliest first. None: no wait is over. O(waiting).
  [[nodiscard]] std::optional<RequestId> take_over();

  [[nodiscard]] bool waits(RequestId request) const noexcept { return requests_[request.index()].wait.tokens > 0; }
  [[nodiscard]] const PrefixWait& wait_of(RequestId request) const noexcept { return requests_[request.index()].wait; }
  /// The number of requests that wait.
  [[nodiscard]] std::int32_t waiting() const noexcept { return static_cast<std::int32_t>(waiting_.size()); }
  /// Throws std::logic_error naming the first broken invariant. O(requests).
  void check() const;

 private:
  struct Request {
    PrefixWait wait;            ///< without tokens: it does not wait
    std::uint64_t order = 0;    ///< of its start
    std::uint64_t until = 0;    ///< the commit at which it waits no longer; 0: it has not waited
    bool is_computing = false;  ///< others may wait for it
  };

  [[nodiscard]] std::span<const PrefixHash> prefixes_of(RequestId request);
  [[nodiscard]] std::int64_t place_wait(RequestId other, std::int64_t least, std::int64_t most) const;
  [[nodiscard]] bool is_over(RequestId request) const;

  RequestBook& book_;
  RequestIndex& index_;
  ShareRunning options_;
  std::vector<Request> requests_;   ///< by request
  std::vector<RequestId> waiting_;  ///< in the order of their starts
  std::uint64_t starts_ = 0;
  std::uint64_t commits_ = 0;
};

/// Throws InvalidArgument for options that share_running cannot keep.
void require_share_running(const RequestCacheOptions& options);

}  // namespace stateport::detail
