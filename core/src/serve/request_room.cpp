// SPDX-License-Identifier: Apache-2.0
#include "serve/request_room.hpp"

#include "containers/ready_vector.hpp"

namespace stateport::detail {

void RequestRoom::before_start(RequestId request) {
  index_->before_open(request);
  for_news(0, 0);
}

void RequestRoom::before_plan(std::size_t ahead) {
  std::size_t saves = 0;
  for (const PassRow& row : check_.busy_rows()) {
    const std::int64_t computed = records_[row.request.index()].computed;
    index_->before_row(row.request, passes_.bounds(row.request, computed, ahead).high + row.tokens);
    saves += static_cast<std::size_t>(saves_max(cache_.options(), row.tokens));
  }
  if (saves == 0) return;
  for_news(0, 0);
  Pass& pass = passes_.at(ahead);
  saves *= group_count(cache_.options());
  reserve_amortised(pass.save_slots, saves);
  reserve_amortised(pass.saves, saves);  // last, because the plan that is replaced points to it
}

/// The busy rows get room for the tokens of this commit, and for those that come while they are quiet after it.
void RequestRoom::before_commit(const Pass& pass) {
  if (pass.busy_rows == 0) return;
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
  index_->before_close(request, how);
  constexpr std::size_t states = 2;  // that of the end, and one that was kept before
  for_news(index_->unpublished_blocks(request), states);
}

void RequestRoom::before_reset() {
  index_->before_forget();
  news_.prepare(1);
}

/// What is held may go, and so may the blocks and states that come.
void RequestRoom::for_news(std::size_t blocks, std::size_t states) {
  if (!news_.has_events()) return;
  const CacheUsage held = cache_.usage();
  news_.prepare(static_cast<std::size_t>(held.kv_tokens / cache_.options().block_size_tokens + held.states) +
                2 * (blocks + states));
}

}  // namespace stateport::detail
