// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../byte_copy.hpp"
#include "../element_copy.hpp"
#include "../global_memory.hpp"
#include "launch_shape.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

/// Copies of aligned tiles (CopyTableView::aligned) by teams that take one tile each.
namespace stateport::kernels {

/// Moves entries [0, count) of a tile: a lane loads all of its entries before it stores convert(entry) of the first. A
/// team of a device has lanes for all entries of a tile; that of a host goes round.
template <std::uint32_t in_flight, class From, class To, class Convert>
KOKKOS_INLINE_FUNCTION void move_tile(std::uint32_t lane, const From* src, To* dst, std::uint32_t count,
                                      const Convert& convert) {
  constexpr std::uint32_t lanes = aligned_shape.lanes;
  if (lane >= count) return;
  std::uint32_t left = count - lane;
  src += lane;
  dst += lane;
  for (;;) {
    From loaded[in_flight];
    STATEPORT_UNROLL
    for (std::uint32_t k = 0; k < in_flight; ++k)
      if (k * lanes < left) loaded[k] = src[k * lanes];
    STATEPORT_UNROLL
    for (std::uint32_t k = 0; k < in_flight; ++k)
      if (k * lanes < left) dst[k * lanes] = convert(loaded[k]);
    if (!on_host || left <= in_flight * lanes) return;
    left -= in_flight * lanes;
    src += in_flight * lanes;
    dst += in_flight * lanes;
  }
}

/// Entries that a lane has in flight, of which so many bytes of a tile make one.
template <std::uint32_t entry_bytes>
inline constexpr std::uint32_t aligned_in_flight = on_host ? 4 : tile_bytes / (aligned_shape.lanes * entry_bytes);

KOKKOS_INLINE_FUNCTION void copy_aligned_words(std::uint32_t lane, std::byte* dst, const std::byte* src,
                                               std::uint32_t bytes) {
  constexpr auto word_bytes = static_cast<std::uint32_t>(sizeof(Word16));
  move_tile<aligned_in_flight<word_bytes>>(lane, reinterpret_cast<const Word16*>(src), reinterpret_cast<Word16*>(dst),
                                           bytes / word_bytes, [](const Word16& word) { return word; });
}

/// Four elements: one access.
template <class Bits>
struct alignas(4 * sizeof(Bits)) Quad {
  static constexpr std::uint32_t size = 4;
  Bits element[size];
};

template <class From, class To>
KOKKOS_INLINE_FUNCTION void convert_aligned_quads(std::uint32_t lane, std::byte* dst, const std::byte* src,
                                                  std::uint32_t elements) {
  using FromQuad = Quad<typename From::Bits>;
  using ToQuad = Quad<typename To::Bits>;
  constexpr auto quad_bytes = static_cast<std::uint32_t>(FromQuad::size * sizeof(float));
  move_tile<aligned_in_flight<quad_bytes>>(lane, reinterpret_cast<const FromQuad*>(src), reinterpret_cast<ToQuad*>(dst),
                                           elements / FromQuad::size, [](const FromQuad& in) {
                                             ToQuad out;
                                             STATEPORT_UNROLL
                                             for (std::uint32_t k = 0; k < FromQuad::size; ++k)
                                               out.element[k] = To::store(From::load(in.element[k]));
                                             return out;
                                           });
}

/// The part of `row` that a tile holds. No branch comes before the tile's record is read: all of it is under way at
/// once.
template <CopyCode code>
KOKKOS_INLINE_FUNCTION void copy_aligned_tile(const Team& team, const Tile& tile, const SlotCopy& row) {
  const std::int32_t src_slot = tile.kind == StateKind::conv ? row.src_slot : row.recurrent_src_slot;
  const std::byte* const src = in_global_memory(tile.src_of(Kokkos::max(src_slot, 0)));
  std::byte* const dst = in_global_memory(tile.dst_of(Kokkos::max(row.dst_slot, 0)));
  const std::uint32_t bytes = src_slot < 0 || src == dst ? 0 : tile.bytes();
  const auto lane = static_cast<std::uint32_t>(team.team_rank());
  if constexpr (code != CopyCode::bytes)
    if (tile.mode == TensorRoute::Mode::convert) {
      if (tile.src_type == ElementType::fp32) return convert_aligned_quads<Fp32, Bf16>(lane, dst, src, bytes / 2);
      return convert_aligned_quads<Bf16, Fp32>(lane, dst, src, bytes / 4);
    }
  copy_aligned_words(lane, dst, src, bytes);
}

}  // namespace stateport::kernels
