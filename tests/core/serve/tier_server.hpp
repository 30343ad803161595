// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "state_world.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace stateport::test {

inline constexpr std::int64_t state_bytes = 100;
inline constexpr std::int64_t block_bytes = 4;  // 4 tokens of KV

/// Room for one checkpoint beside a running request.
inline RequestCacheOptions small(Combination index, const TierOptions& tiers) {
  RequestCacheOptions options{.index = index_of(index),
                              .max_requests = 2,
                              .max_request_tokens = 40,
                              .block_size_tokens = 4,
                              .kv_tokens = 80,
                              .eviction = EvictionOrder::lru,
                              .memory = {.state_bytes = state_bytes, .kv_bytes_per_token = 1},
                              .hash = BlockHashKind::xxh3_128};
  options.tiers = tiers;
  if (in_columns(index))
    options.layout =
        ColumnLayout{.groups = {{.block_size_tokens = 4, .blocks = 6, .conv_window = 3, .layout_fingerprint = 7}}};
  else
    options.layout = SlotLayout{.layout_fingerprint = 7, .checkpoints = 1};
  return options;
}

/// Makes room for this number of checkpoints beside a running request. Columns count the blocks of running requests,
/// too.
inline void set_checkpoints(RequestCacheOptions& options, std::int32_t checkpoints, std::int32_t blocks) {
  if (in_columns(options))
    columns(options).groups[0].blocks = blocks;
  else
    slots(options).checkpoints = checkpoints;
}

inline constexpr TierOptions host = {.host_bytes = 4000};

/// A cache, its memory, and one request at a time.
struct Server {
  using Tokens = StateWorld::Tokens;

  explicit Server(const RequestCacheOptions& options) : cache(make_request_cache(options)), world(options) {}

  // Calls of the cache whose answers have transfers: these wait for take().
  std::optional<StartedRequest> start(const Prompt& prompt) {
    const auto started = cache->start(prompt);
    if (started) note(started->transfers);
    return started;
  }
  PassPlan plan(std::span<const PassRow> rows) {
    const PassPlan plan = cache->plan(rows);
    note(plan.transfers);
    return plan;
  }
  PassCommit commit(PassId pass, std::span<const std::int32_t> counts, std::span<const Token> sampled) {
    const PassCommit commit = cache->commit(pass, counts, sampled);
    note(commit.transfers);
    return commit;
  }
  std::optional<InsertedPrefix> insert(RequestId request, std::int64_t tokens) {
    const auto inserted = cache->insert(request, tokens);
    if (inserted) note(inserted->plan.transfers);
    return inserted;
  }
  void drain() { note(cache->tiers()->drain()); }
  /// Returns the number of requests that are ready.
  std::int32_t settle(std::span<const TransferResult> results) {
    const SettledTransfers settled = cache->tiers()->settle(results);
    note(settled.transfers);
    return settled.ready_requests;
  }

  /// Carries out all decided transfers and settles them with this status.
  std::size_t move(TransferStatus status = TransferStatus::done) {
    settle({});  // for transfers of calls whose answers name none
    const std::vector<TransferResult> results = carry_out(status);
    settle(results);
    cache->check_invariants();
    return moved;
  }
  std::vector<TransferResult> carry_out(TransferStatus status) {
    std::vector<TransferResult> results;
    moved = 0;
    for (const Transfer& transfer : take()) {
      ++moved;
      world.begin(transfer);
      if (transfer.kind == Transfer::Kind::drop) continue;
      const bool is_find = transfer.kind == Transfer::Kind::find;
      const bool is_gone = is_find ? !world.has(transfer) : world.is_gone(transfer);
      const TransferStatus ended = is_gone ? TransferStatus::gone : status;
      world.end(transfer, ended == TransferStatus::done);
      results.push_back({transfer.id, ended});
    }
    return results;
  }
  std::vector<Transfer> take() {
    seen.insert(seen.end(), decided.begin(), decided.end());
    return std::exchange(decided, {});
  }
  void move_all() {
    while (move() > 0) {
    }
  }
  /// The prompt in one pass, and one token more.
  void run(RequestId request, const Tokens& prompt) {
    while (cache->computed(request) < std::ssize(prompt)) {
      const std::int64_t start = cache->computed(request);
      const auto count = static_cast<std::int32_t>(cache->chunk(request, std::ssize(prompt) - start).tokens);
      const PassRow row{.request = request, .tokens = count};
      const PassPlan plan = this->plan({&row, 1});
      REQUIRE(plan.rows_without_room == 0);
      move_all();
      world.before(plan);
      const auto first = prompt.begin() + start;
      world.run(0, plan.rows[0], Tokens(prompt.begin(), first), Tokens(first, first + count));
      const bool ends = start + count == std::ssize(prompt);
      const std::int32_t samples = ends ? 1 : 0;
      const Token token = 1;
      const PassCommit commit = this->commit(plan.pass, {&samples, 1}, {&token, ends ? std::size_t{1} : 0});
      const std::vector<TransferResult> results = carry_out(TransferStatus::done);
      world.after(commit);
      settle(results);
      move_all();
    }
  }
  StartedRequest serve(const Tokens& prompt, const Namespace& name_space = {}) {
    const StartedRequest started = *start({.tokens = prompt, .name_space = name_space});
    move_all();
    run(started.request, prompt);
    cache->finish(started.request);
    move_all();
    return started;
  }

  std::unique_ptr<RequestCache> cache;
  StateWorld world;
  std::size_t moved = 0;          ///< by the last carry_out
  std::vector<Transfer> decided;  ///< that were not taken
  std::vector<Transfer> seen;     ///< all that were taken

 private:
  void note(TransferPlan transfers) { decided.insert(decided.end(), transfers.begin(), transfers.end()); }
};

/// A directory that has `blocks` blocks of any prompt.
struct Elsewhere final : KvDirectory {
  std::int64_t leading_blocks(std::span<const PrefixHash> asked_for) override {
    asked = asked_for.size();
    return blocks;
  }
  std::int64_t blocks = 0;
  std::size_t asked = 0;  ///< the last time
};

inline TierOptions with(Elsewhere& elsewhere, TierOptions tiers = host) {
  tiers.kv_elsewhere = &elsewhere;
  return tiers;
}

inline StateWorld::Tokens prompt_of(std::int32_t count, Token first) {
  StateWorld::Tokens tokens;
  for (std::int32_t i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

/// Fills the device with other prompts, so that its earlier content moves to the tiers below.
inline void push_down(Server& server) {
  for (Token first = 1000; first < 1800; first += 100) server.serve(prompt_of(33, first));
}

/// Served a prompt of 34 tokens, whose KV and state lie below the device now.
struct PushedDown : Server {
  explicit PushedDown(const RequestCacheOptions& options) : Server(options) {
    serve(prompt);
    push_down(*this);
  }
  Tokens prompt = prompt_of(34, 0);
};

}  // namespace stateport::test
