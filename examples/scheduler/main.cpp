// SPDX-License-Identifier: Apache-2.0
// An engine's loop around RequestCache, with each index and each layout: the same code serves all four. States are
// lists of tokens here: a pass leaves in a slot the tokens that it has read, so that a wrong state would be noticed at
// once.
#include <stateport/core.hpp>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

namespace {

using stateport::CacheIndex;
using stateport::PassPlan;
using stateport::SlotId;
using stateport::Token;

void expect(bool ok, const char* what) {
  if (!ok) throw std::runtime_error(what);
}

/// Stands for the engine's stores, its copies and its forward pass. There is one group of layers, and there are no
/// drafts.
class Engine {
 public:
  explicit Engine(const stateport::RequestCacheOptions& options)
      : store_(static_cast<std::size_t>(stateport::state_slots(options))),
        scratch_(static_cast<std::size_t>(stateport::scratch_slots(options))) {}

  void before(const PassPlan& plan) {
    for (const SlotId slot : plan.groups[0].clear) store_[slot.index()].clear();
    copy(store_, plan.groups[0].copies);
  }
  void after(const stateport::PassCommit& commit) {
    copy(scratch_, commit.groups[0].from_scratch);
    copy(store_, commit.groups[0].copies);
  }
  /// Runs the first row; returns a token if all tokens that are known have been fed.
  std::optional<Token> forward(const PassPlan& plan, std::span<const Token> tokens) {
    const stateport::RowPlan& row = plan.rows[0];
    const stateport::RowState& where = row.states[0];
    State state;
    if (where.read_column >= 0) state = store_[where.recurrent_source().index()];
    expect(std::ranges::equal(state, tokens.first(static_cast<std::size_t>(row.start))), "a wrong state");
    for (std::int32_t done = 1; done <= row.tokens; ++done) {
      state.push_back(tokens[static_cast<std::size_t>(row.start + done - 1)]);
      for (const stateport::StateSave& save : where.saves)
        if (save.offset == done) (save.in_scratch ? scratch_ : store_)[save.slot.index()] = state;
    }
    store_[where.target().index()] = state;
    computed += row.tokens;
    if (state.size() < tokens.size()) return std::nullopt;
    return static_cast<Token>(state.size() * 31 % 97);
  }

  std::int64_t computed = 0;  ///< tokens

 private:
  using State = std::vector<Token>;
  void copy(const std::vector<State>& from, stateport::CopyPlan plan) {
    for (const stateport::SlotCopy& copy : plan)
      store_[static_cast<std::size_t>(copy.dst_slot)] = from[static_cast<std::size_t>(copy.recurrent_src_slot)];
  }

  std::vector<State> store_;
  std::vector<State> scratch_;
};

/// Serves one prompt until `answer_tokens` are sampled; returns how many of its tokens were not computed again.
std::int64_t serve(stateport::RequestCache& cache, Engine& engine, const std::vector<Token>& prompt,
                   std::int64_t answer_tokens) {
  const auto started = cache.start({.tokens = prompt});
  expect(started.has_value(), "no room: run this request later");
  const stateport::RequestId request = started->request;
  const std::int64_t prompt_tokens = std::ssize(prompt);

  while (std::ssize(cache.tokens(request)) < prompt_tokens + answer_tokens) {
    // A batch of one row; an engine has a row for each request that runs.
    const std::int64_t budget = cache.computed(request) < prompt_tokens ? 8 : 1;
    const stateport::PassRow row{.request = request,
                                 .tokens = static_cast<std::int32_t>(cache.chunk(request, budget).tokens)};
    const stateport::PassPlan plan = cache.plan({&row, 1});
    expect(plan.rows_without_room == 0, "no room: preempt a request");

    engine.before(plan);  // enqueues the plan's work: slots to clear, states to copy
    const std::optional<Token> sampled = engine.forward(plan, cache.tokens(request));
    const std::int32_t count = sampled ? 1 : 0;
    const Token token = sampled.value_or(0);
    engine.after(cache.commit(plan.pass, {&count, 1}, {&token, sampled ? 1u : 0u}));  // checkpoints
  }
  cache.finish(request);
  return started->reused_tokens;
}

stateport::RequestCacheOptions options_of(CacheIndex index, bool in_columns) {
  const std::uint64_t fingerprint = stateport::models::find("qwen3-next-80b-a3b").fingerprint();
  stateport::RequestCacheOptions options{
      .index = index, .max_requests = 2, .max_request_tokens = 64, .block_size_tokens = 4, .kv_tokens = 256};
  if (in_columns)
    options.layout =
        stateport::ColumnLayout{.groups = {{.block_size_tokens = 4, .blocks = 32, .layout_fingerprint = fingerprint}}};
  else
    options.layout = stateport::SlotLayout{.layout_fingerprint = fingerprint, .checkpoints = 8};
  return options;
}

}  // namespace

int main() {
  for (const int number : {0, 1, 2, 3}) {
    const CacheIndex index = number % 2 == 0 ? CacheIndex::hash : CacheIndex::tree;
    const stateport::RequestCacheOptions options = options_of(index, number >= 2);
    const auto cache = stateport::make_request_cache(options);
    Engine engine(options);
    expect(serve(*cache, engine, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 3) == 0, "an empty cache was hit");
    const std::int64_t before = engine.computed;
    expect(serve(*cache, engine, {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13}, 3) == 8, "the common beginning was not found");
    expect(engine.computed - before == 3 + 2, "a cached token was computed again");
    cache->check_invariants();
  }
  std::puts("each index with each layout: 8 of 11 tokens were not computed again");
  return 0;
}
