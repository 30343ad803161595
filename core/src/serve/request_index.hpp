// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "serve/growing_hashes.hpp"
#include "serve/request_book.hpp"
#include "serve/request_record.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace stateport::detail {

/// Where the KV and the states of requests lie, and how both are found again. RequestLife calls it with checked
/// arguments only:
///
///     start   ─► open
///     plan    ─► reserve (each busy row) ─► place (each with room), at once or when the pass before it settles
///     commit  ─► settle (each busy row) ─► publish
///     cancel, a plan that replaces another ─► unplace
///     end     ─► close
///
/// With tiers, a prompt that has more below the device goes through reserve_load and end_load before its first plan.
///
/// Most rows of most passes decode inside a block: memory is there, the state stays where it is, and nothing is
/// published. Such a row is quiet, and the index has no part in it. After each settle it says up to which token count
/// the request stays quiet (quiet_until).
///
/// No call allocates: the constructors reserve address space.
class RequestIndex {
 public:
  virtual ~RequestIndex() = default;
  RequestIndex(const RequestIndex&) = delete;
  RequestIndex& operator=(const RequestIndex&) = delete;

  /// Finds what is cached of the prompt and takes what the request needs from its start on. None: no room, nothing
  /// taken. The record holds the prompt already; `names` has all of its media.
  [[nodiscard]] virtual std::optional<OpenedPrompt> open(RequestId request, const PromptNames& names) = 0;
  /// How many of `tokens` tokens of the prompt from `start` on to run in one pass, and how many are enough for one.
  [[nodiscard]] virtual PromptChunk split(const RequestRecord& /*record*/, std::int64_t /*start*/,
                                          std::int64_t tokens) const {
    return {.tokens = tokens, .least_budget = 1};
  }
  /// Memory for `upto` tokens, in every group. False: too little. KV that is taken stays with the request.
  [[nodiscard]] virtual bool reserve(RequestId request, std::int64_t upto) = 0;
  /// What must move before the pass, and where row `index` reads and writes states if that is not where its state
  /// lies. Clears pass.quiet if its commit will move, publish or change anything but counts.
  virtual void place(Pass& pass, std::size_t index) = 0;
  /// The pass, placed or not, will not run: what reserve() and place() took for its busy rows goes back, but for KV.
  virtual void unplace(Pass& pass) = 0;
  /// The row ran and kept `sampled` tokens; the record has them, and the new count of computed tokens. Where the state
  /// lies from now on goes to book_.states. Indexes with steps find that of the row in book_.after[0].steps.back().
  virtual void settle(Pass& pass, std::size_t index, std::int32_t sampled) = 0;
  /// After settle() of a row that decodes: rows of the request that end before so many tokens, and within the KV that
  /// it has, need no part of the index.
  [[nodiscard]] virtual std::int64_t quiet_until(RequestId request) const = 0;
  /// After settle() of all rows.
  virtual void publish(Pass& pass) = 0;
  virtual void close(RequestId request, RequestEnd how, const ReuseHint& hint) = 0;
  virtual void forget_all() = 0;
  [[nodiscard]] virtual CacheUsage usage() const noexcept = 0;
  [[nodiscard]] virtual KvRow kv_of(RequestId request) const = 0;
  [[nodiscard]] virtual std::span<const std::int32_t> slots_of(RequestId request, std::size_t group) const = 0;
  virtual void check() const = 0;

  /// The hashes of the whole blocks of the request's first `tokens` tokens, or of more.
  [[nodiscard]] virtual const GrowingHashes& hashes_of(RequestId request, std::int64_t tokens) = 0;
  /// How many leading tokens of the prompt have KV on the device that the request holds, or could hold now: others may
  /// have stored and evicted some since it was opened. What reserve_load() takes as `cached_tokens`.
  [[nodiscard]] virtual std::int64_t cached_now(RequestId request) = 0;
  /// Takes KV for the first `tokens` tokens, of which `cached_tokens` are on the device, and a slot in each group for
  /// the state after them, and keeps what the device has of them. The blocks of KV behind the cached ones go to
  /// `kv_blocks`. Without `slots` the state is on the device already, and is kept there. False: no room; nothing was
  /// taken but KV, which stays with the request.
  [[nodiscard]] virtual bool reserve_load(RequestId request, std::int64_t tokens, std::int64_t cached_tokens,
                                          std::vector<std::int32_t>& kv_blocks, std::span<SlotId> slots) = 0;
  /// `done`: KV and state are there, and can be found; the request continues from them as from any hit, whose
  /// checkpoint is answered (OpenedPrompt::hit). Else what was taken goes back.
  virtual SlotId end_load(RequestId request, std::int64_t tokens, bool done) = 0;

  /// The index may have given the request more memory, or other.
  void note_memory(RequestId request) {
    book_.records[request.index()].kv = kv_of(request);
    std::size_t group = 0;
    for (RowState& state : book_.states.of(request)) state.slots = slots_of(request, group++);
  }

 protected:
  explicit RequestIndex(RequestBook& book) : book_(book), options_(book.options) {}
  [[nodiscard]] const RequestRecord& record(RequestId request) const noexcept { return book_.record(request); }

  RequestBook& book_;
  const RequestCacheOptions& options_;
};

/// The index that the options name.
[[nodiscard]] std::unique_ptr<RequestIndex> make_request_index(RequestBook& book);

}  // namespace stateport::detail
