// SPDX-License-Identifier: Apache-2.0
// The small index kernels of AlignContext: one thread per entry, on every backend.
#include <stateport/backends/internal/execution_space.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/align_context.hpp>

#include "align_launch.hpp"
#include "enqueue.hpp"

#include <algorithm>

namespace stateport::kernels {
namespace {

using Policy = Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int32_t>, ArgumentsByValue>;

struct AddRequest {
  const AlignGroupView* groups;
  std::int32_t slot;
  std::int64_t computed;
  KOKKOS_FUNCTION void operator()(std::int32_t g) const {
    groups[g].column[slot] = seed_column(computed, groups[g].block_size);
    groups[g].accepted[slot] = neutral_accepted;
  }
};

/// The slots travel as an argument of the launch: nothing is staged, and the host does not wait.
constexpr std::size_t forgotten_per_launch = 64;

struct Forget {
  const AlignGroupView* groups;
  std::int32_t group_count;
  std::int32_t slots[forgotten_per_launch];
  KOKKOS_FUNCTION void operator()(std::int32_t i) const {
    for (std::int32_t g = 0; g < group_count; ++g) {
      groups[g].column[slots[i]] = forgotten_column;
      groups[g].accepted[slots[i]] = neutral_accepted;
    }
  }
};

struct ScatterAccepted {
  const AlignGroupView* groups;
  std::int32_t group_count;
  const std::int32_t* request;
  const std::int32_t* sampled;
  std::int32_t value;
  std::int32_t max_requests;
  KOKKOS_FUNCTION void operator()(std::int32_t row) const {
    const std::int32_t slot = request[row];
    if (slot < 0 || slot >= max_requests) return;
    const std::int32_t accepted = accepted_after_sampling(sampled != nullptr ? sampled[row] : value);
    for (std::int32_t g = 0; g < group_count; ++g) groups[g].accepted[slot] = accepted;
  }
};

struct RememberColumns {
  const AlignGroupView* groups;
  std::int32_t group_count;
  AlignBatchView batch;
  KOKKOS_FUNCTION void operator()(std::int32_t row) const {
    const std::int32_t slot = batch.request[row];
    if (slot < 0 || slot >= batch.max_requests) return;
    const std::int32_t computed = batch.counts.computed_of(row, slot);
    for (std::int32_t g = 0; g < group_count; ++g)
      groups[g].column[slot] =
          all_mode_column(computed, batch.counts.scheduled_of(row), batch.max_drafts, groups[g].block_size);
  }
};

struct GatherDecode {
  AlignBatchView batch;
  const std::int32_t* accepted_of;
  const std::uint8_t* decode;
  std::int32_t* accepted;
  std::int32_t* draft_counts;
  KOKKOS_FUNCTION void operator()(std::int32_t row) const {
    const std::int32_t slot = row < batch.rows ? batch.request[row] : -1;
    const bool known = slot >= 0 && slot < batch.max_requests;
    accepted[row] = known ? accepted_of[slot] : neutral_accepted;
    draft_counts[row] =
        known ? decode_draft_count(decode[row] != 0, batch.counts.drafts_of(row, slot)) : no_draft_count;
  }
};

/// The content of a block of a group.
struct HeldBlock {
  AlignGroupView group;
  const std::int32_t* blocks;

  [[nodiscard]] KOKKOS_FUNCTION bool has(std::int32_t i) const {
    return blocks[i] > null_block && blocks[i] < group.blocks;
  }
  [[nodiscard]] KOKKOS_FUNCTION std::int64_t conv(std::int32_t i) const {
    return has(i) ? tokens_of(group.held_conv[blocks[i]]) : unknown_tokens;
  }
  [[nodiscard]] KOKKOS_FUNCTION std::int64_t recurrent(std::int32_t i) const {
    return has(i) ? tokens_of(group.held_recurrent[blocks[i]]) : unknown_tokens;
  }
};

struct GatherHeld {
  HeldBlock block;
  std::int32_t* conv;
  std::int32_t* recurrent;
  KOKKOS_FUNCTION void operator()(std::int32_t i) const {
    conv[i] = static_cast<std::int32_t>(block.conv(i));
    recurrent[i] = static_cast<std::int32_t>(block.recurrent(i));
  }
};

struct VerifyBlocks {
  HeldBlock block;
  const std::int32_t* tokens;
  std::uint8_t* holds;
  KOKKOS_FUNCTION void operator()(std::int32_t i) const {
    holds[i] = holds_state(block.conv(i), block.recurrent(i), tokens[i]) ? 1 : 0;
  }
};

struct WroteBlocks {
  HeldBlock block;
  const std::int32_t* tokens;
  KOKKOS_FUNCTION void operator()(std::int32_t i) const {
    if (!block.has(i)) return;
    block.group.held_conv[block.blocks[i]] = pack_held(0, tokens[i] >= 0 ? tokens[i] : unknown_tokens);
    block.group.held_recurrent[block.blocks[i]] = pack_held(0, tokens[i] >= 0 ? tokens[i] : unknown_tokens);
  }
};

struct ForgetBlocks {
  AlignGroupView group;
  std::int32_t blocks[forgotten_per_launch];
  KOKKOS_FUNCTION void operator()(std::int32_t i) const {
    group.held_conv[blocks[i]] = pack_held(0, unknown_tokens);
    group.held_recurrent[blocks[i]] = pack_held(0, unknown_tokens);
  }
};

struct GatherByIndex {
  const std::int32_t* index;
  const std::int32_t* values;
  std::int32_t count;
  std::int32_t fill;
  std::int32_t* out;
  KOKKOS_FUNCTION void operator()(std::int32_t i) const {
    out[i] = index[i] >= 0 && index[i] < count ? values[index[i]] : fill;
  }
};

}  // namespace

void align_add_request(const Stream& stream, const AlignGroupView* device_groups, std::int32_t groups,
                       RequestIndex request, std::int64_t computed) {
  enqueue(labels::align_add_request, Policy(execution_space(stream), 0, groups),
          AddRequest{device_groups, request.value(), computed});
}

void align_forget(const Stream& stream, const AlignGroupView* device_groups, std::int32_t groups,
                  std::span<const RequestIndex> requests) {
  while (!requests.empty()) {
    const std::span<const RequestIndex> now = requests.first(std::min(requests.size(), forgotten_per_launch));
    requests = requests.subspan(now.size());
    Forget forget{.groups = device_groups, .group_count = groups, .slots = {}};
    std::ranges::transform(now, forget.slots, &RequestIndex::value);
    enqueue(labels::align_forget, Policy(execution_space(stream), 0, static_cast<std::int32_t>(now.size())), forget);
  }
}

void align_scatter_accepted(const Stream& stream, const AlignGroupView* device_groups, std::int32_t groups,
                            const std::int32_t* request, const std::int32_t* sampled, std::int32_t value,
                            std::int32_t rows, std::int32_t max_requests) {
  if (rows == 0) return;
  enqueue(labels::scatter_accepted, Policy(execution_space(stream), 0, rows),
          ScatterAccepted{device_groups, groups, request, sampled, value, max_requests});
}

void align_remember_columns(const Stream& stream, const AlignGroupView* device_groups, std::int32_t groups,
                            const AlignBatchView& batch) {
  enqueue(labels::align_post_step, Policy(execution_space(stream), 0, batch.rows),
          RememberColumns{device_groups, groups, batch});
}

void align_gather_decode(const Stream& stream, const AlignBatchView& batch, const std::int32_t* accepted_of,
                         const std::uint8_t* decode, std::int32_t padded_rows, std::int32_t* accepted,
                         std::int32_t* draft_counts) {
  if (padded_rows == 0) return;
  enqueue(labels::gather_decode, Policy(execution_space(stream), 0, padded_rows),
          GatherDecode{batch, accepted_of, decode, accepted, draft_counts});
}

void align_gather_held(const Stream& stream, const AlignGroupView& group, const std::int32_t* blocks,
                       std::int32_t count, std::int32_t* conv, std::int32_t* recurrent) {
  if (count == 0) return;
  enqueue(labels::align_gather_held, Policy(execution_space(stream), 0, count),
          GatherHeld{{group, blocks}, conv, recurrent});
}

void align_verify_blocks(const Stream& stream, const AlignGroupView& group, const std::int32_t* blocks,
                         const std::int32_t* tokens, std::int32_t count, std::uint8_t* holds) {
  if (count == 0) return;
  enqueue(labels::align_verify_blocks, Policy(execution_space(stream), 0, count),
          VerifyBlocks{{group, blocks}, tokens, holds});
}

void align_wrote_blocks(const Stream& stream, const AlignGroupView& group, const std::int32_t* blocks,
                        const std::int32_t* tokens, std::int32_t count) {
  if (count == 0) return;
  enqueue(labels::align_wrote_blocks, Policy(execution_space(stream), 0, count), WroteBlocks{{group, blocks}, tokens});
}

void align_forget_blocks(const Stream& stream, const AlignGroupView& group, std::span<const BlockId> blocks) {
  while (!blocks.empty()) {
    const std::span<const BlockId> now = blocks.first(std::min(blocks.size(), forgotten_per_launch));
    blocks = blocks.subspan(now.size());
    ForgetBlocks forget{.group = group, .blocks = {}};
    std::ranges::transform(now, forget.blocks, &BlockId::value);
    enqueue(labels::align_forget_blocks, Policy(execution_space(stream), 0, static_cast<std::int32_t>(now.size())),
            forget);
  }
}

}  // namespace stateport::kernels

namespace stateport {

void gather_by_index(const Stream& stream, const std::int32_t* index, const std::int32_t* values, std::int32_t count,
                     std::int32_t fill, std::int32_t* out, std::int32_t rows) {
  require(rows >= 0, "rows", rows, "must not be negative");
  require(count >= 0, "count", count, "must not be negative");
  if (rows == 0) return;
  require(index != nullptr && out != nullptr, "index", "nullptr", "index and out must point to rows entries");
  require(values != nullptr || count == 0, "values", "nullptr", "must point to count entries");
  kernels::enqueue(kernels::labels::gather_by_index, kernels::Policy(execution_space(stream), 0, rows),
                   kernels::GatherByIndex{index, values, count, fill, out});
}

}  // namespace stateport
