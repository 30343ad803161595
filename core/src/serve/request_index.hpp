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
///     fork    ─► fork, before the first reserve
///     refresh ─► refresh, before the first plan; also when a wait for another request is over
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
class RequestIndex : public SharedIndex {
 public:
  virtual ~RequestIndex() = default;
  RequestIndex(const RequestIndex&) = delete;
  RequestIndex& operator=(const RequestIndex&) = delete;

  /// Finds the cached beginning of the prompt and takes the memory that the request needs from its start on. The record
  /// holds the prompt already; `names` has all of its media. None: there is no room, and nothing was taken.
  [[nodiscard]] virtual std::optional<OpenedPrompt> open(RequestId request, const PromptNames& names) = 0;
  /// Looks the prompt of a request up again that has not begun, and no pass of which is outstanding. If more of it can
  /// be reused than before, the request starts from there, and gives back the memory that it took since. None: nothing
  /// changed. Evicts nothing.
  [[nodiscard]] virtual std::optional<OpenedPrompt> refresh(RequestId request) = 0;
  /// A fork of `point`, before its first reserve(): shares the KV of the whole blocks of its computed tokens, and takes
  /// a live slot in slots. Until its first settle() place() makes its passes read the state of the point, which stays
  /// as it is. False: there is no slot, and nothing was taken.
  /// `takes_over`: the point runs no further, and the fork, which has no memory, gets all memory of the point.
  [[nodiscard]] virtual bool fork(RequestId fork, RequestId point, bool takes_over) = 0;
  /// How much of the prompt the next pass runs, which begins at `start` and has a budget of `tokens` tokens.
  [[nodiscard]] virtual PromptChunk split(const RequestRecord& /*record*/, std::int64_t /*start*/,
                                          std::int64_t tokens) const {
    return {.tokens = tokens, .least_budget = 1};
  }
  /// Takes memory for `upto` tokens, in every group. False: there is too little. KV that was taken stays with the
  /// request.
  [[nodiscard]] virtual bool reserve(RequestId request, std::int64_t upto) = 0;
  /// Plans the copies before the pass, its saves, and where row `index` reads and writes states if that is not where
  /// its state lies. Clears pass.quiet if the commit of the row will move, publish or change anything but counts.
  virtual void place(Pass& pass, std::size_t index) = 0;
  /// The pass, placed or not, will not run: takes back the memory that reserve() and place() took for its busy rows,
  /// but for KV.
  virtual void unplace(Pass& pass) = 0;
  /// The row ran and kept `sampled` tokens. The record has them, and the new count of computed tokens. Writes the place
  /// of the state to book_.states. Indexes with steps find the step of the row in book_.after[0].steps.back().
  virtual void settle(Pass& pass, std::size_t index, std::int32_t sampled) = 0;
  /// After settle() of a row that decodes: a later row of the request is quiet if it ends before this token and within
  /// the KV that the request has.
  [[nodiscard]] virtual std::int64_t quiet_until(RequestId request) const = 0;
  /// Publishes the checkpoints of the commit, after settle() of all rows.
  virtual void publish(Pass& pass) = 0;
  /// The request ends: takes its memory back, but for the prefix that stays cached.
  virtual void close(RequestId request, RequestEnd how, const ReuseHint& hint) = 0;
  /// The state after the first `tokens` tokens of the request, which are computed, can be found. O(tokens).
  [[nodiscard]] virtual bool has_state(RequestId request, std::int64_t tokens) const = 0;
  virtual void forget_all() = 0;
  /// Forgets these contents while requests run: all that no request holds is gone, and no later prompt finds the rest,
  /// which goes when its requests end. The requests of these namespaces are stale already. O(all).
  virtual void forget(const Forgotten& forgotten) = 0;
  /// No later prompt finds the checkpoint in this slot, which is one that StateChecks knows. The slot is free once no
  /// request holds the state.
  virtual void withdraw(std::size_t group, SlotId slot) = 0;
  [[nodiscard]] virtual CacheUsage usage() const noexcept = 0;
  [[nodiscard]] virtual KvRow kv_of(RequestId request) const = 0;
  [[nodiscard]] virtual std::span<const std::int32_t> slots_of(RequestId request, std::size_t group) const = 0;
  /// Throws std::logic_error naming the first broken invariant. O(all).
  virtual void check() const = 0;

  /// The hashes of the whole blocks of the request's first `tokens` tokens, and perhaps of more.
  [[nodiscard]] virtual const GrowingHashes& hashes_of(RequestId request, std::int64_t tokens) = 0;
  /// The number of leading tokens of the prompt whose KV is on the device, and which the request holds or could hold
  /// now: others may have stored and evicted some since open(). reserve_load() takes it as `cached_tokens`.
  [[nodiscard]] virtual std::int64_t cached_now(RequestId request) = 0;
  /// Takes KV for the first `tokens` tokens, of which `cached_tokens` are on the device and stay there, and a slot in
  /// each group for the state after them. Appends the blocks of KV behind the cached ones to `kv_blocks`. Without
  /// `slots` the state is on the device already, and stays there. False: there is no room; only KV was taken, and stays
  /// with the request.
  [[nodiscard]] virtual bool reserve_load(RequestId request, std::int64_t tokens, std::int64_t cached_tokens,
                                          std::vector<std::int32_t>& kv_blocks, std::span<SlotId> slots) = 0;
  /// `done`: the KV and the state arrived and can be found. The request continues from them as from any hit; answers
  /// its checkpoint (OpenedPrompt::hit). Not `done`: takes the memory of the load back.
  virtual SlotId end_load(RequestId request, std::int64_t tokens, bool done) = 0;

  /// The index may have given the request more memory, or other.
  void note_memory(RequestId request) {
    book_.records[request.index()].kv = kv_of(request);
    std::size_t group = 0;
    for (RowState& state : book_.states.of(request)) state.slots = slots_of(request, group++);
  }

  /// The request asks for memory, from now on.
  void ask(RequestId request) noexcept { book_.ask(request); }

 protected:
  explicit RequestIndex(RequestBook& book) : book_(book), options_(book.options) {}

  RequestBook& book_;
  const RequestCacheOptions& options_;
};

/// The index that the options name.
[[nodiscard]] std::unique_ptr<RequestIndex> make_request_index(RequestBook& book);

}  // namespace stateport::detail
