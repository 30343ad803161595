// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "serve/arena_sizes.hpp"
#include "serve/hash_columns.hpp"
#include "serve/hash_slots.hpp"
#include "serve/held_memory.hpp"
#include "serve/radix_columns.hpp"
#include "serve/radix_slots.hpp"
#include "serve/request_life.hpp"
#include "serve/request_options.hpp"
#include "serve/session_book.hpp"
#include "serve/tenant_shares.hpp"

#include <utility>
#include <variant>

namespace stateport {
namespace detail {
namespace {

/// All that fits into the cache must be a 64-bit number of bytes.
void check_memory(const RequestCacheOptions& options) {
  check_memory_cost(options.memory);
  constexpr std::int64_t half = INT64_MAX / 2;
  const std::int64_t slots = std::int64_t{options.max_requests} + slot_layout(options).checkpoints;
  require(options.memory.state_bytes <= half / slots, "memory.state_bytes", options.memory.state_bytes,
          "is too much for this number of states");
  require(options.memory.kv_bytes_per_token <= half / (options.kv_tokens + 1), "memory.kv_bytes_per_token",
          options.memory.kv_bytes_per_token, "is too much for this number of tokens");
}

void require_counts(const RequestCacheOptions& options) {
  require(options.index == CacheIndex::hash || options.index == CacheIndex::tree, "index",
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
  require(options.position_tokens >= 1, "position_tokens", options.position_tokens, "must be at least 1");
  check_compute_cost(options.cost, "cost");
  require_tenant_quotas(options);
}

void require_layout(const RequestCacheOptions& options, const SlotLayout& layout) {
  require(layout.checkpoints >= 0, "checkpoints", layout.checkpoints, "must not be negative");
  require(layout.checkpoints <= INT32_MAX - options.max_requests, "checkpoints", layout.checkpoints,
          "is more than slots can be numbered, with those of running requests");
  require(!layout.separate_checkpoints || layout.checkpoints >= 1, "checkpoints", layout.checkpoints,
          "must be at least 1 with separate_checkpoints");
  require(layout.scan_alignment_tokens >= -1, "scan_alignment_tokens", layout.scan_alignment_tokens,
          "must be a distance, 0 or -1");
  const std::int64_t block = options.block_size_tokens;
  require(layout.decode_checkpoint_tokens >= 0 && layout.decode_checkpoint_tokens % block == 0,
          "decode_checkpoint_tokens", layout.decode_checkpoint_tokens, "must be whole blocks");
  require(layout.placement >= CheckpointPlacement::passes && layout.placement <= CheckpointPlacement::every,
          "placement", static_cast<int>(layout.placement), "is not a placement");
  require(layout.breakpoint_saves >= 0 && std::cmp_less_equal(layout.breakpoint_saves, breakpoints_max),
          "breakpoint_saves", layout.breakpoint_saves, "must be from 0 to 8, the positions that a prompt can name");
  require(layout.tail_tokens >= -1, "tail_tokens", layout.tail_tokens, "must be at least -1");
  require(layout.tail_tokens <= 0 || layout.placement != CheckpointPlacement::every, "tail_tokens", layout.tail_tokens,
          "moves the last state of a prompt, and placement every keeps all");
  const std::int64_t spare = layout.spare_checkpoint_tokens;
  require(spare >= 0 && spare % block == 0, "spare_checkpoint_tokens", spare, "must be whole blocks");
  require(spare == 0 || (options.index == CacheIndex::tree && layout.placement != CheckpointPlacement::passes),
          "spare_checkpoint_tokens", spare, "is for the index tree with a placement other than passes");
  require(layout.budget_bytes >= 0, "budget_bytes", layout.budget_bytes, "must not be negative");
}

void require_group(const RequestCacheOptions& options, const StateGroup& group, std::int32_t before) {
  const std::int32_t size = group.block_size_tokens;
  require(size >= 1 && size % before == 0, "block_size_tokens", size,
          "must be a multiple of that of KV and of the group before");
  require(size > (options.overlap ? 2 : 1) * std::int64_t{options.drafts}, "block_size_tokens", size,
          "must be larger than drafts, and than twice as many with overlap");
  require(group.conv_window == 0 || group.conv_window > options.drafts, "conv_window", group.conv_window,
          "must be 0 or longer than drafts: a bias of up to drafts tokens has to leave one");
  require(group.blocks >= request_state_blocks(options, group), "blocks", group.blocks,
          "must be enough for one request");
  require(group.blocks <= INT32_MAX - reserved_state_blocks, "blocks", group.blocks, "is more than can be numbered");
}

void require_layout(const RequestCacheOptions& options, const ColumnLayout& layout) {
  require(layout.mode >= AlignMode::none && layout.mode <= AlignMode::all, "mode", static_cast<int>(layout.mode),
          "is not a mode");
  require(layout.tail_tokens >= -1, "tail_tokens", layout.tail_tokens, "must be at least -1");
  require(layout.tail_tokens <= 0 || layout.mode == AlignMode::align, "tail_tokens", layout.tail_tokens,
          "is for mode align, in which the ends of passes decide where states are kept");
  const bool learns = options.eviction == EvictionOrder::hix || options.eviction == EvictionOrder::gdsf;
  require(!learns || options.index == CacheIndex::tree, "eviction", name(options.eviction),
          "learns from prompts, which blocks of states do not know");
  require(options.index == CacheIndex::hash || layout.mode != AlignMode::none, "mode", "none",
          "is not for the index tree, which keeps KV with states");
  require(!options.tiers.enabled() || layout.mode != AlignMode::none, "tiers", options.tiers.enabled(),
          "need states that are found again, which mode none does not keep");
  require(!layout.groups.empty(), "groups", layout.groups.size(), "must name at least one group");
  std::int32_t before = options.block_size_tokens;
  for (const StateGroup& group : layout.groups) {
    require_group(options, group, before);
    before = group.block_size_tokens;
  }
}

}  // namespace

std::unique_ptr<RequestIndex> make_request_index(RequestBook& book) {
  if (book.options.index == CacheIndex::hash) {
    if (book.in_columns) return std::make_unique<HashColumns>(book);
    return std::make_unique<HashSlots>(book);
  }
  if (book.in_columns) return std::make_unique<RadixColumns>(book);
  return std::make_unique<RadixSlots>(book);
}

void require_sizes(const RequestCacheOptions& options) {
  require_counts(options);
  std::visit([&](const auto& layout) { require_layout(options, layout); }, options.layout);
  check_memory(options);
}

}  // namespace detail

namespace {

void check_options(const RequestCacheOptions& options) {
  detail::require_sizes(options);
  detail::require_arena(options);
  detail::require_share_running(options);
  detail::require_prefix_options(options);
  detail::require_session_options(options);
  static_cast<void>(scratch_slots(options));
  const auto check_fingerprint = [&](std::uint64_t fingerprint) {
    require(options.unchecked_layout || fingerprint != 0, "layout_fingerprint", "0",
            "must be that of the store, unless unchecked_layout is set");
  };
  if (!in_columns(options)) return check_fingerprint(slot_layout(options).layout_fingerprint);
  for (const StateGroup& group : column_layout(options).groups) check_fingerprint(group.layout_fingerprint);
}

}  // namespace

std::unique_ptr<RequestCache> make_request_cache(const RequestCacheOptions& options) {
  check_options(options);
  return std::make_unique<detail::RequestLife>(options);
}

}  // namespace stateport
