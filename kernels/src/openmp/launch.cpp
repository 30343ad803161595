// SPDX-License-Identifier: Apache-2.0
// CPU launches: every thread takes the same number of bytes of the whole step, wherever they lie, so that a 60 KiB conv
// state and a 2 MiB recurrent state balance without any scheduling.
#include "../launch.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstring>
#include <vector>

#include <stateport/backends/internal/execution_space.hpp>

#include "../element_copy.hpp"
#include "../shifted_copy.hpp"
#include "stream_copy.hpp"

namespace stateport::kernels {

const std::size_t tile_bytes_max = std::size_t{1} << 20;

/// Host plans are read where the caller keeps them, because launches are synchronous; rows decided on the device are
/// first reduced to those with work, so that skipped rows do not unbalance the threads.
class Launcher::Staging {
 public:
  std::vector<SlotCopy> rows;
};

Launcher::Launcher() : staging_(std::make_unique<Staging>()) {}
Launcher::Launcher(Launcher&&) noexcept = default;
Launcher& Launcher::operator=(Launcher&&) noexcept = default;
Launcher::~Launcher() = default;

namespace {

/// Cuts at multiples of this many elements, so that no two threads write one cache line of an aligned tensor.
constexpr std::uint64_t cut_elements = 64;

struct ElementRange {
  std::uint32_t tensor;
  std::uint64_t first;
  std::uint64_t count;
};

/// Calls body(row, range) for the destination bytes [begin, end) of all rows laid end to end. Neighbouring calls of
/// neighbouring threads round the same cut alike, so every element is visited once.
template <class Body>
void for_byte_range(const CopyTableView& table, std::uint64_t begin, std::uint64_t end, const Body& body) {
  const std::uint64_t slot_bytes = table.tile_begin_bytes[table.tile_count];
  for (std::uint64_t row = begin / slot_bytes; row * slot_bytes < end; ++row) {
    const std::uint64_t row_begin = row * slot_bytes;
    const std::uint64_t from = begin > row_begin ? begin - row_begin : 0;
    const std::uint64_t to = std::min(end - row_begin, slot_bytes);
    const std::uint64_t* const bounds = table.tile_begin_bytes;
    auto tile = static_cast<std::uint32_t>(std::upper_bound(bounds, bounds + table.tile_count, from) - bounds - 1);
    for (; tile < table.tile_count && bounds[tile] < to; ++tile) {
      const Tile& t = table.tiles[tile];
      const std::uint64_t bytes = (bounds[tile + 1] - bounds[tile]) / t.elements;
      const auto cut = [&](std::uint64_t at) -> std::uint64_t {
        if (at <= bounds[tile]) return 0;
        if (at >= bounds[tile + 1]) return t.elements;
        return (at - bounds[tile]) / bytes / cut_elements * cut_elements;
      };
      const std::uint64_t first = cut(from);
      const std::uint64_t last = cut(to);
      if (first < last) body(row, ElementRange{t.tensor, t.first_element + first, last - first});
    }
  }
}

/// Splits `bytes` over the threads of the stream's execution space and runs body(begin, end) on each.
template <class Body>
void for_each_thread(const Stream& stream, const char* label, std::uint64_t bytes, const Body& body) {
  const ExecutionSpace& space = execution_space(stream);
  const auto threads = static_cast<std::uint64_t>(space.concurrency());
  using Policy =
      Kokkos::RangePolicy<ExecutionSpace, Kokkos::Schedule<Kokkos::Static>, Kokkos::IndexType<std::uint64_t>>;
  Kokkos::parallel_for(label, Policy(space, 0, threads).set_chunk_size(1), [&](std::uint64_t thread) {
    // 128-bit products: bytes * threads may pass 2^64 only for absurd sizes, but the quotient form stays exact.
    const std::uint64_t begin = bytes / threads * thread + bytes % threads * thread / threads;
    const std::uint64_t end = bytes / threads * (thread + 1) + bytes % threads * (thread + 1) / threads;
    body(begin, end);
    finish_stream_copies();
  });
}

void copy_range(const TensorRoute& route, const SlotCopy& row, const ElementRange& range) {
  const bool conv = route.kind == StateKind::conv;
  const std::int32_t src_slot = conv ? row.src_slot : row.recurrent_src_slot;
  if (src_slot < 0) return;
  const std::byte* const src = route.src + src_slot * route.src_stride_bytes;
  std::byte* const dst = route.dst + row.dst_slot * route.dst_stride_bytes;
  if (conv && row.conv_shift != 0)
    return copy_shifted_conv<std::uint64_t>(0, 1, route, dst, src, row.conv_shift, range.first, range.count,
                                            &stream_copy);
  if (src == dst) return;
  if (route.mode == TensorRoute::Mode::elements) return copy_elements(0, 1, route, dst, src, range.first, range.count);
  const auto bytes = static_cast<std::uint64_t>(route.element_bytes);
  stream_copy(dst + range.first * bytes, src + range.first * bytes, range.count * bytes);
}

std::uint64_t step_bytes(const CopyTableView& table, std::uint64_t rows) {
  return table.tile_begin_bytes[table.tile_count] * rows;
}

}  // namespace

void Launcher::copy_rows(const char* label, const Stream& stream, const CopyTableView& table,
                         std::span<const SlotCopy> rows, std::uint32_t first_source_rows) {
  if (rows.empty()) return;
  for_each_thread(stream, label, step_bytes(table, rows.size()), [&](std::uint64_t begin, std::uint64_t end) {
    for_byte_range(table, begin, end, [&](std::uint64_t row, const ElementRange& range) {
      const std::uint32_t source = row < first_source_rows ? 0 : 1;
      copy_range(table.routes[source * table.tensor_count + range.tensor], rows[row], range);
    });
  });
}

void Launcher::copy_rows_on_device(const Stream& stream, const CopyTableView& table, const SlotCopy* rows,
                                   std::uint32_t count, const SlotLimits& limits) {
  std::vector<SlotCopy>& work = staging_->rows;
  work.clear();
  for (SlotCopy row : std::span(rows, count)) {
    if (row.dst_slot < 0 || row.dst_slot >= limits.dst_slots) continue;
    if (row.src_slot >= limits.src_slots || row.conv_shift < 0) row.src_slot = -1;
    if (row.recurrent_src_slot >= limits.src_slots) row.recurrent_src_slot = -1;
    if (row.src_slot >= 0 || row.recurrent_src_slot >= 0) work.push_back(row);
  }
  copy_rows("stateport::copy_slots_on_device", stream, table, work, static_cast<std::uint32_t>(work.size()));
}

void Launcher::clear_rows(const Stream& stream, const CopyTableView& table, std::span<const SlotCopy> rows) {
  if (rows.empty()) return;
  for_each_thread(stream, "stateport::clear_slots", step_bytes(table, rows.size()),
                  [&](std::uint64_t begin, std::uint64_t end) {
                    for_byte_range(table, begin, end, [&](std::uint64_t row, const ElementRange& range) {
                      const TensorRoute& route = table.routes[range.tensor];
                      const auto bytes = static_cast<std::uint64_t>(route.element_bytes);
                      std::memset(route.dst + rows[row].dst_slot * route.dst_stride_bytes + range.first * bytes, 0,
                                  range.count * bytes);
                    });
                  });
}

}  // namespace stateport::kernels
