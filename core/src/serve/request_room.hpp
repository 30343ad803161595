// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "serve/batch_check.hpp"
#include "serve/cache_news.hpp"
#include "serve/pass_queue.hpp"
#include "serve/request_record.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace stateport::detail {

/// A load that may end, for a request that then has the first `tokens` of its prompt.
struct EndingLoad {
  RequestId request;
  std::int64_t tokens = 0;
};

/// The room that an index needs for what a RequestBook asks of it. Each call comes before the hooks that it is named
/// after, which then allocate nothing, and changes nothing that can be seen.
class IndexRoom {
 public:
  /// What open() may need. The record holds the prompt already.
  virtual void before_open(RequestId request) = 0;
  /// reserve() and place() of a row.
  virtual void before_row(RequestId request, std::int64_t upto) = 0;
  /// settle() of the pass's busy rows, and publish().
  virtual void before_commit(const Pass& pass) = 0;
  virtual void before_close(RequestId request, RequestEnd how) = 0;
  virtual void before_forget() {}
  /// end_load() of these. What was reserved for them is there.
  virtual void before_loads_end(std::span<const EndingLoad> loads) = 0;
  /// Blocks of KV that the request could make findable.
  [[nodiscard]] virtual std::size_t unpublished_blocks(RequestId request) const noexcept = 0;

 protected:
  IndexRoom() = default;
  ~IndexRoom() = default;
};

/// Makes the room that a call of a RequestCache needs, before that changes anything: running out of memory then changes
/// nothing. What is named here must outlive it.
class RequestRoom {
 public:
  RequestRoom(const RequestCache& cache, std::span<RequestRecord> records, PassQueue& passes, const BatchCheck& check,
              CacheNews& news)
      : cache_(cache), records_(records), passes_(passes), check_(check), news_(news) {}
  void set_index(IndexRoom& index) noexcept { index_ = &index; }
  void set_tiers(TierIndex& tiers) noexcept { tiers_ = &tiers; }

  void before_start(RequestId request);
  /// Of the rows that were checked last, behind `ahead` outstanding passes.
  void before_plan(std::size_t ahead);
  void before_commit(const Pass& pass);
  void before_end(RequestId request, RequestEnd how);
  void before_cancel() { for_news(0, 0); }
  void before_reset();
  /// Each of these requests may begin a load or end, and the loads of some may end.
  void before_settle(std::span<const RequestId> requests, std::span<const EndingLoad> loads, const TierWork& work);
  /// before_settle(), and while it lives the calls for these requests find their room made.
  class Settling {
   public:
    Settling(RequestRoom& room, std::span<const RequestId> requests, std::span<const EndingLoad> loads,
             const TierWork& work)
        : room_(room) {
      room_.before_settle(requests, loads, work);
      room_.settling_ = true;
    }
    ~Settling() { room_.settling_ = false; }
    Settling(const Settling&) = delete;
    Settling& operator=(const Settling&) = delete;

   private:
    RequestRoom& room_;
  };

 private:
  void for_news(std::size_t blocks, std::size_t states, const TierWork& work = {});
  [[nodiscard]] std::size_t for_prompt(RequestId request);

  const RequestCache& cache_;
  std::span<RequestRecord> records_;
  PassQueue& passes_;
  const BatchCheck& check_;
  CacheNews& news_;
  IndexRoom* index_ = nullptr;
  TierIndex* tiers_ = nullptr;
  bool settling_ = false;
};

}  // namespace stateport::detail
