// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/internal/device_calls.hpp>
#include <stateport/backends/internal/execution_space.hpp>

#include "../element_copy.hpp"
#include "../shifted_copy.hpp"
#include "block_range.hpp"
#include "convert_copy.hpp"
#include "place_copy.hpp"
#include "row_shift.hpp"
#include "stream_copy.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>

/// Work of a CPU launch: the destination bytes of all rows, cut into one range per thread.
namespace stateport::kernels {

/// Cuts at multiples of this many elements or blocks, so that no two threads write one cache line of an aligned tensor.
constexpr std::uint64_t cut_elements = 64;

struct ElementRange {
  std::uint32_t tensor;
  std::uint32_t count;
  std::uint64_t first;
};

/// Destination bytes of one slot in the table's layers.
[[nodiscard]] inline std::uint64_t slot_bytes_of(const CopyTableView& table) {
  return table.tile_begin_bytes[table.tile_count] - table.tile_begin_bytes[0];
}

/// Calls body(row, range) for the destination bytes [begin, end) of all rows laid end to end. Neighbouring calls of
/// neighbouring threads round the same cut alike, so every element is visited once.
template <class Body>
void for_byte_range(const CopyTableView& table, std::uint64_t begin, std::uint64_t end, const Body& body) {
  const std::uint64_t slot_bytes = slot_bytes_of(table);
  for (std::uint64_t row = begin / slot_bytes; row * slot_bytes < end; ++row) {
    const std::uint64_t row_begin = row * slot_bytes;
    const std::uint64_t* const bounds = table.tile_begin_bytes;
    const std::uint64_t from = bounds[0] + (begin > row_begin ? begin - row_begin : 0);
    const std::uint64_t to = bounds[0] + std::min(end - row_begin, slot_bytes);
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
      if (first < last)
        body(row, ElementRange{t.tensor, static_cast<std::uint32_t>(last - first), t.first_element + first});
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
  const detail::LaunchScope scope;
  Kokkos::parallel_for(label, Policy(space, 0, threads).set_chunk_size(1), [&](std::uint64_t thread) {
    // 128-bit products: bytes * threads may pass 2^64 only for absurd sizes, but the quotient form stays exact.
    const std::uint64_t begin = bytes / threads * thread + bytes % threads * thread / threads;
    const std::uint64_t end = bytes / threads * (thread + 1) + bytes % threads * (thread + 1) / threads;
    body(begin, end);
    finish_stream_copies();
  });
  scope.check(label);
}

/// The rows of elements [first, first + count) of a ds conv state, shifted.
inline void shift_rows(const TensorRoute& route, std::byte* dst, const std::byte* src, std::uint32_t shift,
                       std::uint32_t first, std::uint32_t count) {
  const std::uint64_t row_bytes = std::uint64_t{route.window} * route.element_bytes;
  const std::uint64_t shift_bytes = std::uint64_t{shift} * route.element_bytes;
  const std::uint64_t begin = first / route.window * row_bytes;
  const std::uint64_t end = (first + count) / route.window * row_bytes;
  if (row_bytes <= short_row_bytes_max)
    return shift_short_rows(dst + begin, src + begin, end - begin, row_bytes, shift_bytes);
  for (std::uint64_t row = begin; row < end; row += row_bytes)
    std::memmove(dst + row, src + row + shift_bytes, row_bytes - shift_bytes);
}

/// The part of a range in the shift of a conv state by 0 < `shift` < window tokens.
inline void copy_shifted(const TensorRoute& route, std::byte* dst, const std::byte* src, std::uint32_t shift,
                         const ElementRange& range, std::size_t nontemporal_min) {
  const auto first = static_cast<std::uint32_t>(range.first);
  const std::uint32_t first_channel = first / route.window;
  const std::uint32_t end_channel = (first + range.count) / route.window;
  if (route.mode != TensorRoute::Mode::bytes)
    return shift_elements(0, 1, route, dst, src, shift, first_channel, end_channel);
  if (route.token_inner) return shift_rows(route, dst, src, shift, first, range.count);
  const ConvExtents extents{.window = route.window, .dim = route.dim, .element_bytes = route.element_bytes};
  if (dst == src) return shift_sd_in_place<std::uint64_t>(0, 1, extents, dst, shift, first_channel, end_channel);
  const std::uint64_t element = route.element_bytes;
  const std::uint64_t from = (std::uint64_t{first} + std::uint64_t{shift} * route.dim) * element;
  stream_copy(dst + first * element, src + from, shifted_sd_elements(extents, shift, first, range.count) * element,
              nontemporal_min);
}

/// The elements of a range from one slot to another. `nontemporal_min`: nontemporal_bytes_min() of the launch.
inline void copy_elements_of(const TensorRoute& route, std::byte* dst, const std::byte* src, const ElementRange& range,
                             std::size_t nontemporal_min) {
  if (route.mode == TensorRoute::Mode::blocks)
    return copy_block_range(route, dst, src, static_cast<std::uint32_t>(range.first), range.count, nontemporal_min);
  const auto bytes = static_cast<std::uint64_t>(route.element_bytes);
  if (route.mode == TensorRoute::Mode::convert)
    return convert_copy(dst + range.first * bytes, route.dst_type, src + range.first * element_bytes(route.src_type),
                        route.src_type, range.count, nontemporal_min);
  if (route.mode == TensorRoute::Mode::elements) {
    if (copy_places(route, dst, src, static_cast<std::uint32_t>(range.first), range.count)) return;
    return copy_elements(0, 1, route, dst, src, range.first, range.count);
  }
  stream_copy(dst + range.first * bytes, src + range.first * bytes, range.count * bytes, nontemporal_min);
}

/// The same for a row of a plan, whose conv part may be shifted.
inline void copy_range(const TensorRoute& route, const SlotCopy& row, const ElementRange& range,
                       std::size_t nontemporal_min) {
  const bool conv = route.kind == StateKind::conv;
  const std::int32_t src_slot = conv ? row.src_slot : row.recurrent_src_slot;
  if (src_slot < 0) return;
  const std::byte* const src = route.src_of(src_slot);
  std::byte* const dst = route.dst_of(row.dst_slot);
  if (conv && row.conv_shift != 0) {
    const auto shift = static_cast<std::uint32_t>(row.conv_shift);
    if (shift < route.window) copy_shifted(route, dst, src, shift, range, nontemporal_min);
    return;
  }
  if (src != dst) copy_elements_of(route, dst, src, range, nontemporal_min);
}

}  // namespace stateport::kernels
