// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

namespace stateport::test {

/// A RequestCache that is short of memory: each call is made with its first allocation failing, then with its second,
/// and so on until it succeeds. After each failure everything that can be observed equals what a twin shows, which had
/// the same calls before and no failure, and the last plan still says what it said; after the success the answers are
/// equal, too. Whatever a failed call leaves behind unseen makes a later answer differ.
class FailingCache final : public RequestCache {
 public:
  /// `and_later`: all allocations after the failing one fail, too, until the call ends. `failures` are counted.
  FailingCache(const RequestCacheOptions& options, bool and_later, std::int64_t& failures);
  ~FailingCache() override;

  [[nodiscard]] std::optional<StartedRequest> start(const Prompt& prompt) override;
  [[nodiscard]] PromptChunk chunk(RequestId request, std::int64_t budget_tokens) const override;
  [[nodiscard]] PassPlan plan(std::span<const PassRow> rows) override;
  void cancel(PassId pass) override;
  [[nodiscard]] PassCommit commit(PassId pass, std::span<const std::int32_t> counts,
                                  std::span<const Token> sampled) override;
  CopyPlan end(RequestId request, RequestEnd how, const ReuseHint& hint) override;
  [[nodiscard]] std::span<const Token> tokens(RequestId request) const override { return subject_->tokens(request); }
  [[nodiscard]] std::int64_t computed(RequestId request) const override { return subject_->computed(request); }
  [[nodiscard]] KvRow kv(RequestId request) const override { return subject_->kv(request); }
  [[nodiscard]] RowState state(RequestId request, std::size_t group) const override {
    return subject_->state(request, group);
  }
  [[nodiscard]] std::int32_t running_requests() const noexcept override { return subject_->running_requests(); }
  [[nodiscard]] CacheTiers* tiers() noexcept override;
  void reset() override;
  [[nodiscard]] const RequestCacheOptions& options() const noexcept override { return subject_->options(); }
  [[nodiscard]] const CacheStats& stats() const noexcept override { return subject_->stats(); }
  [[nodiscard]] CacheUsage usage() const noexcept override { return subject_->usage(); }
  [[nodiscard]] std::size_t take_events(std::span<CacheEvent> out) override;
  void check_invariants() const override { subject_->check_invariants(); }

 private:
  class Tiers;
  /// Makes one call of the subject until it succeeds, and then of the twin. Returns the subject's answer.
  template <class Call, class Same>
  auto call(const char* name, Call&& call, Same&& same);
  void check_same() const;
  void keep_plan(const PassPlan& plan);

  bool and_later_;
  std::int64_t& failures_;
  std::unique_ptr<RequestCache> subject_;
  std::unique_ptr<RequestCache> twin_;
  std::unique_ptr<Tiers> tiers_;
  std::set<RequestId> running_;
  std::optional<PassPlan> plan_;        ///< the last one, while what it points to is valid
  std::vector<std::int64_t> plan_was_;  ///< all that it said
};

}  // namespace stateport::test
