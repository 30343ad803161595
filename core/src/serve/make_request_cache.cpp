// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "serve/hash_columns.hpp"
#include "serve/hash_slots.hpp"
#include "serve/radix_columns.hpp"
#include "serve/radix_slots.hpp"
#include "serve/request_life.hpp"
#include "serve/request_options.hpp"

namespace stateport {
namespace detail {
namespace {

/// All that fits into the cache must be a 64-bit number of bytes.
void check_memory(const RequestCacheOptions& options) {
  check_memory_cost(options.memory);
  constexpr std::int64_t half = INT64_MAX / 2;
  const std::int64_t slots = std::int64_t{options.max_requests} + options.checkpoints;
  require(options.memory.state_bytes <= half / slots, "memory.state_bytes", options.memory.state_bytes,
          "is too much for so many states");
  require(options.memory.kv_bytes_per_token <= half / (options.kv_tokens + 1), "memory.kv_bytes_per_token",
          options.memory.kv_bytes_per_token, "is too much for so many tokens");
}

void require_counts(const RequestCacheOptions& options) {
  require(options.index >= CacheIndex::slots && options.index <= CacheIndex::tree_align, "index",
          static_cast<int>(options.index), "is not an index");
  require(options.max_requests >= 1, "max_requests", options.max_requests, "must be at least 1");
  require(options.max_request_tokens >= 1 && options.max_request_tokens <= INT32_MAX, "max_request_tokens",
          options.max_request_tokens, "must be a 32-bit count of at least 1");
  require(options.drafts >= 0, "drafts", options.drafts, "must not be negative");
  require(options.block_size_tokens >= 1, "block_size_tokens", options.block_size_tokens, "must be at least 1");
  const std::int64_t block = options.block_size_tokens;
  require(options.kv_tokens >= 0 &&
              floor_to(options.kv_tokens, block) >= ceil_div(options.max_request_tokens, block) * block,
          "kv_tokens", options.kv_tokens, "must be room for one request of max_request_tokens");
  require(options.kv_tokens <= INT32_MAX - 2 * block, "kv_tokens", options.kv_tokens,
          "is more than a KV index can name");
  require(options.checkpoints >= 0, "checkpoints", options.checkpoints, "must not be negative");
  require(options.checkpoints <= INT32_MAX - options.max_requests, "checkpoints", options.checkpoints,
          "is more than slots can be numbered, with those of running requests");
  require(!options.separate_checkpoints || options.checkpoints >= 1, "checkpoints", options.checkpoints,
          "must be at least 1 with separate_checkpoints");
  require(options.scan_alignment_tokens >= -1, "scan_alignment_tokens", options.scan_alignment_tokens,
          "must be a distance, 0 or -1");
  require(options.decode_checkpoint_tokens >= 0 && options.decode_checkpoint_tokens % block == 0,
          "decode_checkpoint_tokens", options.decode_checkpoint_tokens, "must be whole blocks");
  require(options.placement >= CheckpointPlacement::passes && options.placement <= CheckpointPlacement::every,
          "placement", static_cast<int>(options.placement), "is not a placement");
  const std::int64_t spare = options.spare_checkpoint_tokens;
  require(spare >= 0 && spare % block == 0, "spare_checkpoint_tokens", spare, "must be whole blocks");
  require(spare == 0 || (options.index == CacheIndex::tree && options.placement != CheckpointPlacement::passes),
          "spare_checkpoint_tokens", spare, "is for the index tree with a placement other than passes");
  require(options.budget_bytes >= 0, "budget_bytes", options.budget_bytes, "must not be negative");
  require(options.position_tokens >= 1, "position_tokens", options.position_tokens, "must be at least 1");
  check_memory(options);
  check_compute_cost(options.cost, "cost");
}

void require_group(const RequestCacheOptions& options, const StateGroup& group, std::int32_t before) {
  const std::int32_t size = group.block_size_tokens;
  require(size >= 1 && size % before == 0, "block_size_tokens", size,
          "must be a multiple of that of KV and of the group before");
  require(size > (options.overlap ? 2 : 1) * std::int64_t{options.drafts}, "block_size_tokens", size,
          "must be larger than drafts, and than twice as many with overlap");
  require(group.conv_window == 0 || group.conv_window > options.drafts, "conv_window", group.conv_window,
          "must be 0 or longer than drafts: a bias of up to drafts tokens has to leave one");
  const std::int64_t needed = resident_blocks(options.align_mode, options.max_request_tokens, size, options.drafts, 0) +
                              (options.overlap ? 1 : 0) + (by_tokens(options.index) ? 1 : 0);
  require(group.blocks >= needed, "blocks", group.blocks, "must be enough for one request");
  require(group.blocks <= INT32_MAX - reserved_state_blocks, "blocks", group.blocks, "is more than can be numbered");
}

void require_columns(const RequestCacheOptions& options) {
  require(options.placement == CheckpointPlacement::passes, "placement", static_cast<int>(options.placement),
          "is not for the indexes align and tree_align, which keep states at the boundaries of blocks");
  require(!options.separate_checkpoints, "separate_checkpoints", options.separate_checkpoints,
          "is not for the indexes align and tree_align, whose passes read checkpoints where they lie");
  require(options.budget_bytes == 0, "budget_bytes", options.budget_bytes,
          "is not for the indexes align and tree_align");
  require(options.align_mode >= AlignMode::none && options.align_mode <= AlignMode::all, "align_mode",
          static_cast<int>(options.align_mode), "is not a mode");
  const bool learns = options.eviction == EvictionOrder::hix || options.eviction == EvictionOrder::gdsf;
  require(!learns || by_tokens(options.index), "eviction", name(options.eviction),
          "learns from prompts, which blocks of states do not know");
  require(!by_tokens(options.index) || options.align_mode != AlignMode::none, "align_mode", "none",
          "is not for the index tree_align, which keeps KV with states");
  require(!options.tiers.enabled() || options.align_mode != AlignMode::none, "tiers", options.tiers.enabled(),
          "need states that are found again, which mode none does not keep");
  require(!options.groups.empty(), "groups", options.groups.size(), "must name at least one group");
  std::int32_t before = options.block_size_tokens;
  for (const StateGroup& group : options.groups) {
    require_group(options, group, before);
    before = group.block_size_tokens;
  }
}

}  // namespace

std::unique_ptr<RequestIndex> make_request_index(RequestBook& book) {
  switch (book.options.index) {
    case CacheIndex::slots:
      return std::make_unique<HashSlots>(book);
    case CacheIndex::tree:
      return std::make_unique<RadixSlots>(book);
    case CacheIndex::align:
      return std::make_unique<HashColumns>(book);
    default:
      return std::make_unique<RadixColumns>(book);
  }
}

void require_sizes(const RequestCacheOptions& options) {
  require_counts(options);
  if (in_columns(options.index)) return require_columns(options);
  require(options.groups.empty(), "groups", options.groups.size(), "are for the indexes align and tree_align alone");
}

}  // namespace detail

namespace {

void check_layout(const RequestCacheOptions& options, std::uint64_t fingerprint) {
  require(options.unchecked_layout || fingerprint != 0, "layout_fingerprint", "0",
          "must be that of the store, unless unchecked_layout is set");
}

void check_options(const RequestCacheOptions& options) {
  detail::require_sizes(options);
  static_cast<void>(scratch_slots(options));
  if (!in_columns(options.index)) return check_layout(options, options.layout_fingerprint);
  for (const StateGroup& group : options.groups) check_layout(options, group.layout_fingerprint);
}

}  // namespace

std::unique_ptr<RequestCache> make_request_cache(const RequestCacheOptions& options) {
  check_options(options);
  return std::make_unique<detail::RequestLife>(options);
}

}  // namespace stateport
