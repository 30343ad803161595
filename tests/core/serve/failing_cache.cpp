// SPDX-License-Identifier: Apache-2.0
#include "failing_cache.hpp"

#include <stateport/core/model/error.hpp>

#include "heap_counter.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace stateport::test {
namespace {

template <class A, class B>
bool equal(const A& a, const B& b) {
  return std::ranges::equal(a, b);
}
bool same_kv(const KvRow& a, const KvRow& b) {
  return a.tokens_per_id == b.tokens_per_id && equal(a.ids, b.ids);
}
bool same_save(const StateSave& a, const StateSave& b) {
  return a.offset == b.offset && a.slot == b.slot && a.in_scratch == b.in_scratch;
}
bool same_state(const RowState& a, const RowState& b) {
  return a.read_column == b.read_column && a.read_bias == b.read_bias && a.write_column == b.write_column &&
         equal(a.slots, b.slots) && std::ranges::equal(a.saves, b.saves, same_save);
}
bool same_row(const RowPlan& a, const RowPlan& b) {
  return a.request == b.request && a.room == b.room && a.tokens == b.tokens && a.drafts == b.drafts &&
         a.start == b.start && same_kv(a.kv, b.kv) && std::ranges::equal(a.states, b.states, same_state);
}
bool same_group(const GroupPlan& a, const GroupPlan& b) {
  return equal(a.clear, b.clear) && equal(a.copies, b.copies);
}
bool same_scrub(const ScrubPlan& a, const ScrubPlan& b) {
  return equal(a.kv_blocks, b.kv_blocks) && equal(a.scratch, b.scratch) && equal(a.draft_rows, b.draft_rows);
}
bool same_plan(const PassPlan& a, const PassPlan& b) {
  return a.pass == b.pass && a.ready == b.ready && a.rows_without_room == b.rows_without_room &&
         std::ranges::equal(a.rows, b.rows, same_row) && same_scrub(a.scrub, b.scrub) &&
         (!a.ready || std::ranges::equal(a.groups, b.groups, same_group));
}
bool same_step(const StepCommit& a, const StepCommit& b) {
  return a.row == b.row && a.live_step == b.live_step && a.live_slot == b.live_slot && a.kept_step == b.kept_step &&
         a.kept_slot == b.kept_slot;
}
bool same_group_commit(const GroupCommit& a, const GroupCommit& b) {
  return equal(a.from_scratch, b.from_scratch) && equal(a.copies, b.copies) &&
         std::ranges::equal(a.steps, b.steps, same_step);
}
bool same_commit(const PassCommit& a, const PassCommit& b) {
  return a.published_states == b.published_states && a.dropped_states == b.dropped_states &&
         std::ranges::equal(a.groups, b.groups, same_group_commit) && a.next.has_value() == b.next.has_value() &&
         (!a.next || same_plan(*a.next, *b.next));
}
bool same_start(const std::optional<StartedRequest>& a, const std::optional<StartedRequest>& b) {
  if (!a || !b) return a.has_value() == b.has_value();
  const bool same_load = a->load.has_value() == b->load.has_value() &&
                         (!a->load || (a->load->tokens == b->load->tokens && a->load->bytes == b->load->bytes &&
                                       a->load->medium == b->load->medium));
  return a->request == b->request && a->reused_tokens == b->reused_tokens && a->lost_tokens == b->lost_tokens &&
         a->lost == b->lost && same_load;
}
bool same_usage(const CacheUsage& a, const CacheUsage& b) {
  return a.kv_tokens == b.kv_tokens && a.states == b.states && a.evicted_kv_tokens == b.evicted_kv_tokens &&
         a.evicted_states == b.evicted_states;
}
/// Transfers of a plan, a commit or an end were not taken.
bool must_take(CacheTiers& tiers) {
  try {
    tiers.settle({});
    return false;
  } catch (const InvalidState&) {
    return true;
  }
}
/// All that a plan says, as numbers.
std::vector<std::int64_t> flat(const PassPlan& plan) {
  std::vector<std::int64_t> all = {static_cast<std::int64_t>(plan.pass), plan.ready, plan.rows_without_room};
  for (const RowPlan& row : plan.rows) {
    all.insert(all.end(), {row.request.value(), row.room, row.tokens, row.drafts, row.start, row.kv.tokens_per_id});
    all.insert(all.end(), row.kv.ids.begin(), row.kv.ids.end());
    for (const RowState& state : row.states) {
      all.insert(all.end(), {state.read_column, state.read_bias, state.write_column});
      all.insert(all.end(), state.slots.begin(), state.slots.end());
      for (const StateSave& save : state.saves)
        all.insert(all.end(), {save.offset, save.slot.value(), save.in_scratch});
    }
  }
  all.insert(all.end(), plan.scrub.kv_blocks.begin(), plan.scrub.kv_blocks.end());
  for (const SlotId slot : plan.scrub.scratch) all.push_back(slot.value());
  all.insert(all.end(), plan.scrub.draft_rows.begin(), plan.scrub.draft_rows.end());
  for (const GroupPlan& group : plan.groups) {
    for (const SlotId slot : group.clear) all.push_back(slot.value());
    for (const SlotCopy& copy : group.copies)
      all.insert(all.end(), {copy.src_slot, copy.dst_slot, copy.conv_shift, copy.recurrent_src_slot});
  }
  return all;
}
constexpr auto same_value = [](const auto& a, const auto& b) { return a == b; };

}  // namespace

template <class Call, class Same>
auto FailingCache::call(const char* name, Call&& call, Same&& same) {
  INFO(std::string(name));
  for (std::uint64_t n = 1;; ++n) {
    fail_heap_allocation(n, and_later_);
    try {
      auto answer = call(*subject_);
      fail_heap_allocation(0);
      REQUIRE(same(answer, call(*twin_)));
      return answer;
    } catch (const std::bad_alloc&) {
      fail_heap_allocation(0);
    } catch (...) {
      fail_heap_allocation(0);
      throw;
    }
    ++failures_;
    INFO("allocation ", n);
    subject_->check_invariants();
    check_same();
  }
}

class FailingCache::Tiers final : public CacheTiers {
 public:
  explicit Tiers(FailingCache& cache) : cache_(cache) {}

  TransferPlan take_transfers() override {
    return cache_.call(
        "take_transfers", [](RequestCache& cache) { return cache.tiers()->take_transfers(); },
        [](const TransferPlan& a, const TransferPlan& b) { return equal(a.transfers, b.transfers); });
  }
  std::size_t transfers_to_take() const noexcept override { return subject().transfers_to_take(); }
  std::int32_t settle(std::span<const TransferResult> results) override {
    return cache_.call(
        "settle", [&](RequestCache& cache) { return cache.tiers()->settle(results); }, same_value);
  }
  bool is_loading(RequestId request) const override { return subject().is_loading(request); }
  std::size_t transfers_under_way() const noexcept override { return subject().transfers_under_way(); }
  void drain() override {
    cache_.call(
        "drain", [](RequestCache& cache) { return cache.tiers()->drain(), 0; }, same_value);
  }
  bool attach(Medium medium, const ImageKey& image) override {
    return cache_.call(
        "attach", [&](RequestCache& cache) { return cache.tiers()->attach(medium, image); }, same_value);
  }
  void set_speeds(const TierSpeeds& speeds) override {
    cache_.call(
        "set_speeds", [&](RequestCache& cache) { return cache.tiers()->set_speeds(speeds), 0; }, same_value);
  }
  TierUsage usage(Medium medium) const override { return subject().usage(medium); }

 private:
  [[nodiscard]] CacheTiers& subject() const noexcept { return *cache_.subject_->tiers(); }
  FailingCache& cache_;
};

FailingCache::FailingCache(const RequestCacheOptions& options, bool and_later, std::int64_t& failures)
    : and_later_(and_later), failures_(failures) {
  fail_each_allocation([&](std::uint64_t) { subject_ = make_request_cache(options); }, [](std::uint64_t) {});
  twin_ = make_request_cache(options);
  if (subject_->tiers() != nullptr) tiers_ = std::make_unique<Tiers>(*this);
}
FailingCache::~FailingCache() = default;

void FailingCache::keep_plan(const PassPlan& plan) {
  plan_ = plan;
  plan_was_ = flat(plan);
}

void FailingCache::check_same() const {
  if (plan_) REQUIRE(flat(*plan_) == plan_was_);
  REQUIRE(same_usage(subject_->usage(), twin_->usage()));
  REQUIRE(subject_->stats() == twin_->stats());
  REQUIRE(subject_->running_requests() == twin_->running_requests());
  for (const RequestId id : running_) {
    REQUIRE(equal(subject_->tokens(id), twin_->tokens(id)));
    REQUIRE(subject_->computed(id) == twin_->computed(id));
    REQUIRE(same_kv(subject_->kv(id), twin_->kv(id)));
    REQUIRE(subject_->chunk(id, 7) == twin_->chunk(id, 7));
    for (std::size_t g = 0; g < group_count(options()); ++g)
      REQUIRE(same_state(subject_->state(id, g), twin_->state(id, g)));
  }
  if (!tiers_) return;
  REQUIRE(subject_->tiers()->transfers_under_way() == twin_->tiers()->transfers_under_way());
  REQUIRE(subject_->tiers()->transfers_to_take() == twin_->tiers()->transfers_to_take());
  for (const RequestId id : running_) REQUIRE(subject_->tiers()->is_loading(id) == twin_->tiers()->is_loading(id));
  for (const Medium medium : {Medium::host, Medium::file, Medium::remote})
    REQUIRE(subject_->tiers()->usage(medium) == twin_->tiers()->usage(medium));
  // The last one: it settles, which drops a state that was attached in part.
  REQUIRE(must_take(*subject_->tiers()) == must_take(*twin_->tiers()));
}

std::optional<StartedRequest> FailingCache::start(const Prompt& prompt) {
  const auto started = call(
      "start", [&](RequestCache& cache) { return cache.start(prompt); }, same_start);
  if (started) running_.insert(started->request);
  return started;
}

PromptChunk FailingCache::chunk(RequestId request, std::int64_t budget_tokens) const {
  return const_cast<FailingCache*>(this)->call(
      "chunk", [&](RequestCache& cache) { return cache.chunk(request, budget_tokens); }, same_value);
}

PassPlan FailingCache::plan(std::span<const PassRow> rows) {
  const PassPlan plan = call(
      "plan", [&](RequestCache& cache) { return cache.plan(rows); }, same_plan);
  keep_plan(plan);
  return plan;
}

void FailingCache::cancel(PassId pass) {
  call(
      "cancel", [&](RequestCache& cache) { return cache.cancel(pass), 0; }, same_value);
  plan_.reset();
}

PassCommit FailingCache::commit(PassId pass, std::span<const std::int32_t> counts, std::span<const Token> sampled) {
  const PassCommit commit = call(
      "commit", [&](RequestCache& cache) { return cache.commit(pass, counts, sampled); }, same_commit);
  plan_.reset();
  if (commit.next) keep_plan(*commit.next);
  return commit;
}

CopyPlan FailingCache::end(RequestId request, RequestEnd how, const ReuseHint& hint) {
  const CopyPlan copies = call(
      "end", [&](RequestCache& cache) { return cache.end(request, how, hint); },
      [](CopyPlan a, CopyPlan b) { return equal(a, b); });
  running_.erase(request);
  plan_.reset();
  return copies;
}

void FailingCache::reset() {
  call(
      "reset", [](RequestCache& cache) { return cache.reset(), 0; }, same_value);
}

std::size_t FailingCache::take_events(std::span<CacheEvent> out) {
  std::vector<CacheEvent> of_twin(out.size());
  return call(
      "take_events", [&](RequestCache& cache) { return cache.take_events(&cache == twin_.get() ? of_twin : out); },
      [&](std::size_t a, std::size_t b) { return a == b && equal(out.first(a), std::span(of_twin).first(b)); });
}

CacheTiers* FailingCache::tiers() noexcept {
  return tiers_.get();
}

}  // namespace stateport::test
