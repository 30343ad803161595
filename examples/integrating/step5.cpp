// SPDX-License-Identifier: Apache-2.0
// Step 5: a batch. All requests that fit run in one pass; where memory is short, the youngest is preempted, and hits
// the states that it left when it starts again.
#include "engine.hpp"

#include <deque>

using namespace toy;

namespace {

stateport::RequestCacheOptions options() {
  return {.index = stateport::CacheIndex::tree,
          .layout = stateport::SlotLayout{.layout_fingerprint = Engine::spec().fingerprint(), .checkpoints = 16},
          .max_requests = 3,
          .max_request_tokens = 128,
          .block_size_tokens = 16,
          .kv_tokens = 176};  // less than three of the requests take together
}

class Scheduler {
 public:
  Scheduler(stateport::RequestCache& cache, Engine& engine) : cache_(cache), engine_(engine) {}

  std::vector<Tokens> answer(const std::vector<Tokens>& prompts) {
    answers_.resize(prompts.size());
    for (std::size_t i = 0; i < prompts.size(); ++i)
      waiting_.push_back({.number = i, .tokens = prompts[i], .prompt_tokens = prompts[i].size()});
    while (!waiting_.empty() || !running_.empty()) {
      admit();
      run_pass();
    }
    return std::move(answers_);
  }

  std::int64_t preemptions = 0;

 private:
  struct Job {
    std::size_t number = 0;
    Tokens tokens;  ///< prompt and answer so far, while it waits
    std::size_t prompt_tokens = 0;
    stateport::RequestId request = {};
  };

  // docs: admit
  void admit() {
    while (!waiting_.empty() && !memory_is_short_) {
      const auto started = cache_.start({.tokens = waiting_.front().tokens});
      if (!started) return;  // no room: later
      waiting_.front().request = started->request;
      running_.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
  }
  // docs end

  // docs: a pass
  void run_pass() {
    std::vector<stateport::PassRow> rows;
    for (const Job& job : running_) {
      const bool decodes = cache_.computed(job.request) + 1 == std::ssize(cache_.tokens(job.request));
      const std::int64_t tokens = cache_.chunk(job.request, decodes ? 1 : 32).tokens;
      if (tokens > 0) rows.push_back({.request = job.request, .tokens = static_cast<std::int32_t>(tokens)});
    }
    const stateport::PassPlan plan = cache_.plan(rows);
    engine_.clear(plan.groups[0].clear);
    engine_.copy(plan.groups[0].copies);
    std::vector<std::int32_t> counts;  // of each row of the plan
    Tokens sampled;                    // of all rows
    for (const stateport::RowPlan& row : plan.rows) {
      const auto token = row.room ? engine_.forward(row, cache_.tokens(row.request)) : std::nullopt;
      counts.push_back(token ? 1 : 0);
      if (token) sampled.push_back(*token);
    }
    engine_.copy(cache_.commit(plan.pass, counts, sampled).groups[0].copies);
    finish();
    if (plan.rows_without_room > 0) preempt();
  }
  // docs end

  void finish() {
    std::erase_if(running_, [&](const Job& job) {
      const auto tokens = cache_.tokens(job.request);
      if (tokens.size() < job.prompt_tokens + answer_tokens) return false;
      answers_[job.number].assign(tokens.begin() + static_cast<std::ptrdiff_t>(job.prompt_tokens), tokens.end());
      cache_.finish(job.request);
      memory_is_short_ = false;
      return true;
    });
  }

  // docs: preempt
  void preempt() {
    if (running_.size() < 2) return;  // one request always fits
    Job job = std::move(running_.back());
    running_.pop_back();
    const auto tokens = cache_.tokens(job.request);
    job.tokens.assign(tokens.begin(), tokens.end());
    cache_.preempt(job.request);
    waiting_.push_front(std::move(job));
    memory_is_short_ = true;  // until a request has ended
    ++preemptions;
  }
  // docs end

  stateport::RequestCache& cache_;
  Engine& engine_;
  std::deque<Job> waiting_;
  std::vector<Job> running_;
  std::vector<Tokens> answers_;
  bool memory_is_short_ = false;
};

}  // namespace

int main() {
  const Work work;
  const auto cache = stateport::make_request_cache(options());
  Engine engine(stateport::state_slots(options()), static_cast<std::size_t>(stateport::kv_blocks(options())) * 16);
  Scheduler scheduler(*cache, engine);
  expect(scheduler.answer(work.prompts) == work.answers, "a wrong answer");
  const std::size_t first = engine.computed;
  expect(scheduler.answer(work.prompts) == work.answers, "a wrong answer from a full cache");
  std::printf("step 5: %zu of %zu tokens computed, the second time %zu; %lld preemptions\n%s", first, work.tokens,
              engine.computed - first, static_cast<long long>(scheduler.preemptions),
              stateport::to_string(cache->stats()).c_str());
  return scheduler.preemptions > 0 && first == 342 && engine.computed - first == 200 ? 0 : 1;  // docs/integrating.md
}
