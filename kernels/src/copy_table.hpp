// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/core/model/element_type.hpp>
#include <stateport/core/model/state_spec.hpp>
#include <stateport/kernels/state_store.hpp>

namespace stateport::kernels {

/// How one tensor of one source reaches the destination. Read by every kernel; 64 bytes, one per source and tensor.
struct TensorRoute {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  std::int64_t src_stride_bytes = 0;
  std::int64_t dst_stride_bytes = 0;
  std::int64_t window = 0;
  std::int64_t dim = 0;
  std::int32_t element_bytes = 0;  ///< of the destination
  ElementType src_type = ElementType::fp32;
  ElementType dst_type = ElementType::fp32;
  StateKind kind = StateKind::recurrent;
  /// bytes: equal type and layout, moved bit for bit. elements: converted, transposed, or both.
  enum class Mode : std::uint8_t { bytes, elements } mode = Mode::bytes;
  ConvLayout src_layout = ConvLayout::sd;
  ConvLayout dst_layout = ConvLayout::sd;  ///< differs from src_layout only in mode elements

  /// Where a slot starts. Strides are 64-bit and bases are pointers, so any base will do, also one whose number has
  /// its top bit set.
  [[nodiscard]] constexpr const std::byte* src_of(std::int32_t slot) const noexcept {
    return src + slot * src_stride_bytes;
  }
  [[nodiscard]] constexpr std::byte* dst_of(std::int32_t slot) const noexcept { return dst + slot * dst_stride_bytes; }
};

/// A contiguous range of one tensor's destination elements: the unit of work. The same for every slot, so that
/// (slot, tile) is found by arithmetic. Starts are multiples of 16 elements.
struct Tile {
  std::uint32_t tensor = 0;
  std::uint32_t elements = 0;
  std::uint64_t first_element = 0;
};
static_assert(sizeof(Tile) == 16);

/// The table as a kernel sees it. routes: [sources, tensors]; tiles: [tile_count]; tile_begin_bytes: [tile_count + 1]
/// destination bytes of one slot that lie before each tile.
struct CopyTableView {
  const TensorRoute* routes = nullptr;
  const Tile* tiles = nullptr;
  const std::uint64_t* tile_begin_bytes = nullptr;
  std::uint32_t tensor_count = 0;
  std::uint32_t tile_count = 0;
  bool converts = false;  ///< a route is in mode elements
};

/// The tile table of copies from `sources` to one destination store, in device memory. Tiles hold at most
/// `tile_bytes_max` destination bytes; those of one tensor are equal but for the last. Stays where it is.
class CopyTable {
 public:
  /// Throws InvalidArgument when a source does not fit the destination.
  CopyTable(std::span<const StateStore* const> sources, const StateStore& destination, std::size_t tile_bytes_max);

  CopyTable(const CopyTable&) = delete;
  CopyTable& operator=(const CopyTable&) = delete;

  [[nodiscard]] CopyTableView view() const noexcept;
  /// Whether conv tensors are moved bit for bit, so that they can be shifted on the way.
  [[nodiscard]] bool shiftable() const noexcept { return shiftable_; }
  /// The shortest conv window in tokens; INT64_MAX without conv tensors.
  [[nodiscard]] std::int64_t window_min() const noexcept { return window_min_; }

 private:
  std::uint32_t tensor_count_ = 0;
  std::uint32_t tile_count_ = 0;
  bool converts_ = false;
  bool shiftable_ = true;
  std::int64_t window_min_ = INT64_MAX;
  DeviceResource resource_;
  Buffer routes_;
  Buffer tiles_;
  Buffer tile_begin_bytes_;
};

/// Splits one tensor into near-equal tiles and appends them. For CopyTable and its test.
void append_tiles(std::vector<Tile>& tiles, std::uint32_t tensor, std::uint64_t elements, std::size_t element_bytes,
                  std::size_t tile_bytes_max);

}  // namespace stateport::kernels
