// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "serve/batch_check.hpp"
#include "serve/cache_news.hpp"
#include "serve/pass_queue.hpp"
#include "serve/request_clock.hpp"
#include "serve/request_record.hpp"
#include "serve/request_tiers.hpp"
#include "serve/state_ages.hpp"
#include "serve/tenant_marks.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stateport::detail {

/// What the request caches of all indexes share: the numbers and tokens of requests, outstanding passes, the checks of
/// everything that comes in, statistics. An index fills in the hooks; it is called with checked arguments only.
///
///     plan    ─► reserve (each busy row) ─► place (each with room), at once or when the pass before it settles
///     commit  ─► settle (each busy row) ─► publish
///     cancel, a plan that replaces another ─► unplace
///
/// Most rows of most passes decode inside a block: memory is there, the state stays where it is, and nothing is
/// published. Such a row is quiet. After each settle the index says up to which token count the request stays quiet
/// (quiet_until), and the book alone counts its tokens up to there.
class RequestBook : public RequestCache, protected LoadTarget {
 public:
  [[nodiscard]] std::optional<StartedRequest> start(const Prompt& prompt) final;
  [[nodiscard]] PromptChunk chunk(RequestId request, std::int64_t budget_tokens) const final;
  [[nodiscard]] PassPlan plan(std::span<const PassRow> rows) final;
  void cancel(PassId pass) final;
  [[nodiscard]] PassCommit commit(PassId pass, std::span<const std::int32_t> counts,
                                  std::span<const Token> sampled) final;
  CopyPlan end(RequestId request, RequestEnd how, const ReuseHint& hint) final;
  [[nodiscard]] std::span<const Token> tokens(RequestId request) const final { return checked(request).tokens.all(); }
  [[nodiscard]] std::int64_t computed(RequestId request) const final { return checked(request).computed; }
  [[nodiscard]] HitPlaces places(RequestId request, std::size_t group) const final;
  [[nodiscard]] std::optional<InsertedPrefix> insert(RequestId request, std::int64_t tokens) final;
  [[nodiscard]] KvRow kv(RequestId request) const final;
  [[nodiscard]] RowState state(RequestId request, std::size_t group) const final;
  [[nodiscard]] std::int32_t running_requests() const noexcept final { return running_; }
  [[nodiscard]] CacheTiers* tiers() noexcept final { return tiers_ ? &*tiers_ : nullptr; }
  void reset() final;
  [[nodiscard]] const RequestCacheOptions& options() const noexcept final { return options_; }
  [[nodiscard]] const CacheStats& stats() const noexcept final { return stats_; }
  [[nodiscard]] std::size_t take_events(std::span<CacheEvent> out) final;
  void check_invariants() const final;

 protected:
  using Record = RequestRecord;

  using Opened = OpenedPrompt;
  /// The copies of one commit, for one group.
  struct After {
    std::vector<SlotCopy> from_scratch;
    std::vector<SlotCopy> copies;
    std::vector<StepCommit> steps;
  };

  /// Construction reserves address space for all that the options allow. No hook allocates.
  explicit RequestBook(const RequestCacheOptions& options);

  /// Finds what is cached of the prompt and takes what the request needs from its start on. None: no room, nothing
  /// taken. The record holds the prompt already; `names` has all of its media.
  [[nodiscard]] virtual std::optional<Opened> open(RequestId request, const PromptNames& names) = 0;
  /// Memory for `upto` tokens, in every group. False: too little. KV that is taken stays with the request.
  [[nodiscard]] virtual bool reserve(RequestId request, std::int64_t upto) = 0;
  /// What must move before the pass, and where row `index` reads and writes states if that is not where its state
  /// lies. Clears pass.quiet if its commit will move, publish or change anything but counts.
  virtual void place(Pass& pass, std::size_t index) = 0;
  /// The pass, placed or not, will not run: what reserve() and place() took for its busy rows goes back, but for KV.
  virtual void unplace(Pass& pass) = 0;
  /// The row ran and kept `sampled` tokens; the record has them, and the new count of computed tokens. Where the state
  /// lies from now on goes to states_. Indexes with steps find that of the row in after_[0].steps.back().
  virtual void settle(Pass& pass, std::size_t index, std::int32_t sampled) = 0;
  /// After settle() of a row that decodes: rows of the request that end before so many tokens, and within the KV that
  /// it has, need no part of the index.
  [[nodiscard]] virtual std::int64_t quiet_until(RequestId request) const = 0;
  /// After settle() of all rows.
  virtual void publish(Pass& pass) = 0;
  virtual void close(RequestId request, RequestEnd how, const ReuseHint& hint) = 0;
  virtual void forget_all() = 0;
  /// How many of `tokens` tokens of the prompt from `start` on to run in one pass, and how many are enough for one.
  [[nodiscard]] virtual PromptChunk split(const Record& record, std::int64_t start, std::int64_t tokens) const;
  [[nodiscard]] virtual KvRow kv_of(RequestId request) const = 0;
  [[nodiscard]] virtual std::span<const std::int32_t> slots_of(RequestId request, std::size_t group) const = 0;
  /// The checkpoint of one group from which the request continues. Only of a request with a hit, before its first
  /// commit.
  [[nodiscard]] virtual SlotId hit_slot(RequestId request, std::size_t group) const = 0;
  virtual void check_index() const = 0;

  [[nodiscard]] const Record& record(RequestId request) const noexcept { return records_[request.index()]; }
  RequestCacheOptions options_;
  std::size_t groups_;
  bool in_columns_;  ///< a pass leaves the states after its drafts in columns; false: in steps of scratch memory
  CacheNews news_;
  PassQueue passes_;
  std::vector<Record> records_;
  StateTable states_;  ///< after the computed tokens. open() says where a state begins; the book fills in the slots.
  BatchCheck check_;
  std::vector<After> after_;  ///< by group, of this commit
  std::vector<SlotCopy> end_copies_;
  std::int32_t published_ = 0;  ///< of this commit
  std::int32_t dropped_ = 0;
  CacheStats stats_;
  StateAges ages_;    ///< of indexes whose checkpoints lie in slots
  double now_s_ = 0;  ///< of the last start(); never goes back

 private:
  [[nodiscard]] const Record& checked(RequestId request) const {
    check_running(records_, request);
    require(!tiers_ || !tiers_->has_ended(request), "request", request, "is not running");
    return records_[request.index()];
  }
  Pass& plan_rows(std::span<const PassRow> rows, std::size_t ahead, bool inserts);
  [[nodiscard]] PassCommit settle_oldest(std::span<const std::int32_t> counts, std::span<const Token> sampled);
  void drop_newest();
  void add_row(Pass& pass, std::size_t index, const PassRow& row, std::size_t ahead);
  [[nodiscard]] RowPart reserve_row(Pass& pass, std::size_t index, RequestId request, std::int64_t upto);
  void note_memory(RequestId request) final;
  void place_busy_rows(Pass& pass);
  void settle_row(Pass& pass, std::size_t index, std::int32_t sampled);
  [[nodiscard]] PassCommit take_commit();

  std::vector<RequestId> free_requests_;
  PassId last_pass_ = 0;
  std::int32_t running_ = 0;
  std::vector<GroupCommit> group_commits_;
  std::vector<std::int32_t> inserted_kv_;  ///< of the last insert(): its commit may replace some in the request
  std::optional<TenantMarks> marks_;       ///< with options.scrub
  std::optional<RequestTiers> tiers_;
  RequestClock clock_;
};

}  // namespace stateport::detail
