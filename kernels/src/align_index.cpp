// SPDX-License-Identifier: Apache-2.0
// The small index kernels of AlignContext: one thread per entry, on every backend.
#include <Kokkos_Core.hpp>

#include <algorithm>

#include <stateport/backends/internal/execution_space.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/align_context.hpp>

#include "align_launch.hpp"

namespace stateport::kernels {
namespace {

using Policy = Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int32_t>>;

struct AddRequest {
  const AlignGroupView* groups;
  std::int32_t slot;
  std::int64_t computed;
  KOKKOS_FUNCTION void operator()(std::int32_t g) const {
    groups[g].column[slot] = seed_column(computed, groups[g].block_size);
    groups[g].accepted[slot] = neutral_accepted;
  }
};

/// The slots travel as an argument of the launch: nothing is staged, and nobody waits.
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
static_assert(sizeof(Forget) < 512);

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
    draft_counts[row] = known ? decode_draft_count(decode[row] != 0, batch.drafts[row]) : no_draft_count;
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
                       RequestId request, std::int64_t computed) {
  Kokkos::parallel_for("stateport::align_add_request", Policy(execution_space(stream), 0, groups),
                       AddRequest{device_groups, request.value(), computed});
}

void align_forget(const Stream& stream, const AlignGroupView* device_groups, std::int32_t groups,
                  std::span<const RequestId> requests) {
  while (!requests.empty()) {
    const std::span<const RequestId> now = requests.first(std::min(requests.size(), forgotten_per_launch));
    requests = requests.subspan(now.size());
    Forget forget{.groups = device_groups, .group_count = groups, .slots = {}};
    std::ranges::transform(now, forget.slots, &RequestId::value);
    Kokkos::parallel_for("stateport::align_forget",
                         Policy(execution_space(stream), 0, static_cast<std::int32_t>(now.size())), forget);
  }
}

void align_scatter_accepted(const Stream& stream, const AlignGroupView* device_groups, std::int32_t groups,
                            const std::int32_t* request, const std::int32_t* sampled, std::int32_t value,
                            std::int32_t rows, std::int32_t max_requests) {
  if (rows == 0) return;
  Kokkos::parallel_for("stateport::scatter_accepted", Policy(execution_space(stream), 0, rows),
                       ScatterAccepted{device_groups, groups, request, sampled, value, max_requests});
}

void align_gather_decode(const Stream& stream, const AlignBatchView& batch, const std::int32_t* accepted_of,
                         const std::uint8_t* decode, std::int32_t padded_rows, std::int32_t* accepted,
                         std::int32_t* draft_counts) {
  if (padded_rows == 0) return;
  Kokkos::parallel_for("stateport::gather_decode", Policy(execution_space(stream), 0, padded_rows),
                       GatherDecode{batch, accepted_of, decode, accepted, draft_counts});
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
  Kokkos::parallel_for("stateport::gather_by_index", kernels::Policy(execution_space(stream), 0, rows),
                       kernels::GatherByIndex{index, values, count, fill, out});
}

}  // namespace stateport
