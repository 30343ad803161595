// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>
#include <stateport/core/serve/request_types.hpp>

#include "hash/namespace_tag.hpp"
#include "serve/token_list.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stateport::detail {

/// The names of a prompt beside its tokens.
struct PromptNames {
  Namespace name_space;
  std::span<const MediaKey> media;
};

/// The cached beginning of a prompt: as the index found it, later as tiers know it and have loaded it.
struct OpenedPrompt {
  std::int64_t reused_tokens = 0;
  std::int64_t cached_tokens = 0;  ///< whose KV is cached, >= reused_tokens: the prompt branches off there
  std::optional<LostHit> lost;
  SlotId hit;  ///< the checkpoint after reused_tokens. None: there is no hit, or it lies in columns.
  std::int64_t loading_tokens = 0;  ///< that a load under way brings

  /// Whether another look-up finds more: a deeper state, or behind the same one more KV. Then the prompt branches off
  /// deeper.
  [[nodiscard]] constexpr bool is_less_than(std::int64_t reused, std::int64_t cached) const noexcept {
    return reused > reused_tokens || (reused == reused_tokens && cached > cached_tokens);
  }
};

/// What a prompt teaches about tails (TailUse): the tokens that it loses to the tail of an earlier prompt, or without
/// one.
struct TailLesson {
  std::int32_t lost_without = 0;
  std::int32_t lost_with = 0;
  bool is_one = false;  ///< an earlier prompt was found
};

/// A request, whatever the index. A step without tiers reads only the first cache line of a quiet request.
struct alignas(64) RequestRecord {
  RequestId id;  ///< of the request in this row, of the last one, or of one that did not start
  std::int64_t computed = 0;
  std::int64_t quiet_until = 0;  ///< a row that ends before it is quiet: its pass changes counts and tokens alone
  TokenList tokens;
  std::uint64_t named = 0;  ///< the last batch that named the request

  std::int64_t prompt_tokens = 0;
  KvRow kv;  ///< all that memory was found for
  bool running = false;
  bool begun = false;         ///< a pass was committed: the state is where StateTable says, no longer in its hit
  bool ending = false;        ///< it has ended, and is kept until its load ends, or until its forks have begun
  bool holds_prefix = false;  ///< no request: a pin or a prefetch has this row (HeldPrefixes)
  bool stale = false;         ///< its contents were forgotten: it publishes nothing
  bool lost_load = false;     ///< the state on the device that its load of KV is for was withdrawn
  bool is_fork = false;       ///< it is a fork that has not begun
  bool has_memory = false;    ///< of a fork: it has taken memory of its own
  std::int64_t pass_before_tail =
      0;                         ///< where the last pass began that began before the tail; the first one always does
  NamespaceTag tag{};            ///< of the prompt's namespace
  std::int64_t tail_tokens = 0;  ///< 0: it has none
  TailLesson tail_lesson;
  Namespace name_space;         ///< of the epoch in which it started
  std::vector<MediaKey> media;  ///< of the last block of the prompt, if that is not full; one for each position
  ReuseHint hint;

  /// Makes room for all that a request of such a cache can have.
  explicit RequestRecord(const RequestCacheOptions& options);
  /// `epoch_name` is the name of its namespace in this epoch.
  void fill(const Prompt& prompt, const Namespace& epoch_name, std::int64_t block_size_tokens);
  /// A row of the request ran, and sampled these tokens.
  void count(const RowPlan& row, std::span<const Token> sampled) {
    tokens.append(sampled);
    computed += row.tokens - row.drafts + accepted_bias(static_cast<std::int32_t>(sampled.size()));
  }
  /// False: a fork that shares the KV of its point by its point alone.
  [[nodiscard]] bool has_kv() const noexcept { return !is_fork || has_memory; }
  [[nodiscard]] PromptNames names() const noexcept { return {.name_space = name_space, .media = media}; }
};

/// Where the state of each request lies, in each group of layers.
class StateTable {
 public:
  StateTable(std::size_t requests, std::size_t groups) : groups_(groups), states_(requests * groups) {}

  [[nodiscard]] std::span<RowState> of(RequestId request) noexcept {
    return std::span(states_).subspan(request.index() * groups_, groups_);
  }
  [[nodiscard]] std::span<const RowState> of(RequestId request) const noexcept {
    return std::span(states_).subspan(request.index() * groups_, groups_);
  }

 private:
  std::size_t groups_;
  std::vector<RowState> states_;  ///< [requests, groups]
};

/// In slots, the columns of a row: its live slot, and for a fork that has not begun the live slot of its point.
using LiveColumns = std::array<std::int32_t, 2>;
inline constexpr LiveColumns no_columns = {no_column, no_column};

[[nodiscard]] inline std::span<const std::int32_t> columns_of(const LiveColumns& columns) noexcept {
  return std::span(columns).first(columns[1] == no_column ? 1 : 2);
}
/// The state of a fork that has not begun: its first pass reads the slot of its point and writes its own.
[[nodiscard]] inline RowState read_point(LiveColumns& columns, const LiveColumns& point) noexcept {
  columns[1] = point[0];
  return {.slots = columns_of(columns), .read_column = 1, .write_column = 0};
}

/// The record of a request. Throws InvalidArgument unless the request runs.
inline const RequestRecord& check_running(std::span<const RequestRecord> records, RequestId request) {
  const bool runs = request.valid() && request.index() < records.size() && records[request.index()].running &&
                    !records[request.index()].holds_prefix && !records[request.index()].ending &&
                    records[request.index()].id == request;
  require(runs, "request", request, "is not running");
  return records[request.index()];
}

/// Throws InvalidArgument: see RequestCache::start.
void check_prompt(const Prompt& prompt, std::int64_t tokens_max, double last_now_s);

}  // namespace stateport::detail
