// SPDX-License-Identifier: Apache-2.0
#include "serve/request_room.hpp"

#include "containers/ready_vector.hpp"

namespace stateport::detail {

void RequestRoom::before_start(RequestId request) {
  index_->before_open(request);
  for_news(0, 0, {.requested = tiers_ != nullptr ? for_prompt(request) : 0});
}

/// The request may load all of its prompt. Returns how many finds or loads are named for it at most.
std::size_t RequestRoom::for_prompt(RequestId request) {
  const std::int64_t prompt = records_[request.index()].prompt_tokens;
  index_->before_row(request, prompt);
  return tiers_->reserve_request(request, static_cast<std::size_t>(prompt / cache_.options().block_size_tokens));
}

void RequestRoom::before_plan(std::size_t ahead) {
  std::size_t saves = 0;
  for (const PassRow& row : check_.busy_rows()) {
    const std::int64_t computed = records_[row.request.index()].computed;
    index_->before_row(row.request, passes_.bounds(row.request, computed, ahead).high + row.tokens);
    saves += static_cast<std::size_t>(saves_max(cache_.options(), row.tokens));
  }
  if (saves > 0 || tiers_ != nullptr) for_news(0, 0);
  if (saves == 0) return;
  Pass& pass = passes_.at(ahead);
  saves *= group_count(cache_.options());
  reserve_amortised(pass.save_slots, saves);
  reserve_amortised(pass.saves, saves);  // last, because the plan that is replaced points to it
}

/// The busy rows get room for the tokens of this commit, and for those that come while they are quiet after it.
void RequestRoom::before_commit(const Pass& pass) {
  if (pass.busy_rows == 0) {
    if (tiers_ != nullptr) for_news(0, 0);
    return;
  }
  std::size_t blocks = 0;
  for (const std::uint32_t i : pass.busy) {
    if (!pass.is_busy(i)) continue;
    const RequestId id = pass.rows[i].request;
    RequestRecord& record = records_[id.index()];
    const std::int64_t room = std::ssize(record.kv.ids) * record.kv.tokens_per_id;
    constexpr std::int64_t sampled = 2;
    record.tokens.reserve(static_cast<std::size_t>(room + sampled));
    blocks += index_->unpublished_blocks(id);
  }
  index_->before_commit(pass);
  for_news(blocks, (pass.saves.size() + pass.rows.size()) * group_count(cache_.options()));
}

void RequestRoom::before_end(RequestId request, RequestEnd how) {
  if (settling_) return;
  index_->before_close(request, how);
  constexpr std::size_t states = 2;  // that of the end, and one that was kept before
  for_news(index_->unpublished_blocks(request), states);
}

void RequestRoom::before_reset() {
  index_->before_forget();
  for_news(0, 1);
}

void RequestRoom::before_settle(std::span<const RequestId> requests, std::span<const EndingLoad> loads,
                                const TierWork& work) {
  TierWork most = work;
  std::size_t blocks = 0;
  for (const RequestId id : requests) {
    blocks += index_->unpublished_blocks(id);
    most.requested += for_prompt(id);
    index_->before_close(id, RequestEnd::aborted);
  }
  index_->before_loads_end(loads);
  for_news(blocks, requests.size() * group_count(cache_.options()), most);
}

/// What is held may go, and so may the blocks and states that come.
void RequestRoom::for_news(std::size_t blocks, std::size_t states, const TierWork& work) {
  if (!news_.on()) return;
  const CacheUsage held = cache_.usage();
  std::size_t changes = static_cast<std::size_t>(held.kv_tokens / cache_.options().block_size_tokens + held.states) +
                        2 * (blocks + states);
  if (tiers_ != nullptr) changes += tiers_->reserve(changes, work);
  if (news_.has_events()) news_.prepare(changes);
}

}  // namespace stateport::detail
