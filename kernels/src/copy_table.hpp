// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/core/model/element_type.hpp>
#include <stateport/core/model/state_spec.hpp>
#include <stateport/kernels/state_store.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::kernels {

/// ConvStrides in 32 bits: a conv state has fewer than 2^32 bytes.
struct RouteStrides {
  std::uint32_t token = 0;
  std::uint32_t channel = 0;

  [[nodiscard]] constexpr std::uint32_t at(std::uint32_t t, std::uint32_t c) const noexcept {
    return t * token + c * channel;
  }
};

/// How one tensor of one source reaches the destination. Read by every kernel; 64 bytes, one per source and tensor.
struct TensorRoute {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  std::int64_t src_stride_bytes = 0;
  std::int64_t dst_stride_bytes = 0;
  std::uint32_t window = 0;       ///< of conv; in mode blocks, the rows of the tensor
  std::uint32_t dim = 0;          ///< of conv; in mode blocks, the elements of a row
  RouteStrides src_strides = {};  ///< conv only, as those of dst
  RouteStrides dst_strides = {};
  std::uint8_t element_bytes = 0;  ///< of the destination
  ElementType src_type = ElementType::fp32;
  ElementType dst_type = ElementType::fp32;
  StateKind kind = StateKind::recurrent;
  /// bytes: equal types at equal places without gaps, moved bit for bit. convert: as bytes, with another type.
  /// elements: one by one, from place to place, with any types. blocks: block by block, see BlockLayout; the tensor is
  /// in blocks in the destination or in any source.
  enum class Mode : std::uint8_t { bytes, convert, elements, blocks } mode = Mode::bytes;
  bool token_inner = false;  ///< conv: neighbouring elements of the destination are tokens of one channel
  bool dst_dense = true;     ///< a range of elements of a destination slot is a range of its bytes

  /// Where a slot starts. Strides are 64-bit and bases are pointers, so any base will do, also one whose number has
  /// its top bit set.
  [[nodiscard]] constexpr const std::byte* src_of(std::int32_t slot) const noexcept {
    return src + slot * src_stride_bytes;
  }
  [[nodiscard]] constexpr std::byte* dst_of(std::int32_t slot) const noexcept { return dst + slot * dst_stride_bytes; }

  /// The distance of element i of a conv state from the start of a slot with these strides, in elements. Elements are
  /// counted in the order of the destination's memory.
  [[nodiscard]] constexpr std::uint32_t place(const RouteStrides& strides, std::uint32_t i) const noexcept {
    return token_inner ? strides.at(i % window, i / window) : strides.at(i / dim, i % dim);
  }

  /// The first element of a block; of the block behind the last one, the number of elements.
  [[nodiscard]] constexpr std::uint64_t block_begin(std::uint32_t block) const noexcept {
    constexpr auto block_elements = static_cast<std::uint32_t>(BlockLayout::block_elements);
    if (dim % block_elements == 0) return std::uint64_t{block} * block_elements;
    const std::uint32_t per_row = (dim + block_elements - 1) / block_elements;
    const std::uint32_t row = block / per_row;
    return std::uint64_t{row} * dim + std::uint64_t{block - row * per_row} * block_elements;
  }
  /// Where the scale of a block lies, in bytes past the start of a slot.
  [[nodiscard]] constexpr std::uint64_t scale_offset(std::uint32_t block) const noexcept {
    return std::uint64_t{window} * dim + std::uint64_t{block} * static_cast<std::uint32_t>(BlockLayout::scale_bytes);
  }
};
static_assert(sizeof(TensorRoute) == 64);

/// A range of one tensor's elements, counted in the order of the destination's memory: the unit of work, the same for
/// every slot. It begins at a multiple of 16 elements. In mode blocks, read "blocks" for "elements". A tile has what a
/// copy needs of its route in most modes, so that a kernel waits for one record only.
struct alignas(16) Tile {
  std::uint64_t first_element = 0;
  std::uint32_t elements = 0;
  std::uint32_t tensor = 0;
  const std::byte* src = nullptr;  ///< the tile in slot 0 of the source; modes bytes and convert, as those of dst
  std::byte* dst = nullptr;
  std::int64_t src_stride_bytes = 0;
  std::int64_t dst_stride_bytes = 0;
  std::uint32_t window = 0;  ///< the rest as in TensorRoute
  std::uint32_t dim = 0;
  std::uint8_t element_bytes = 0;
  StateKind kind = StateKind::recurrent;
  TensorRoute::Mode mode = TensorRoute::Mode::bytes;
  ElementType src_type = ElementType::fp32;
  bool token_inner = false;

  /// Of the destination.
  [[nodiscard]] constexpr std::uint32_t bytes() const noexcept { return elements * element_bytes; }
  [[nodiscard]] constexpr const std::byte* src_of(std::int32_t slot) const noexcept {
    return src + slot * src_stride_bytes;
  }
  [[nodiscard]] constexpr std::byte* dst_of(std::int32_t slot) const noexcept { return dst + slot * dst_stride_bytes; }
};
static_assert(sizeof(Tile) == 64);

/// The code that a kernel needs for the tiles of a table. Each kind has the code of those before it.
enum class CopyCode : std::uint8_t {
  /// Mode bytes; every tile of every slot is a range of whole words of 16 bytes. Conv tensors have elements of 2 or 4
  /// bytes; tokens in sd are whole words, and rows in ds are short.
  words,
  elements,  ///< modes bytes, convert and elements
  blocks     ///< all modes
};

/// The tiles of some layers as a kernel sees them. routes: [sources, tensors]; tiles: [sources, source_tiles], of which
/// the first tile_count of each source are these layers'; tile_begin_bytes: [tile_count + 1] destination bytes of one
/// slot that lie before each tile, gaps not counted; the first is not 0 unless the first layer is among them. In mode
/// blocks, these are the bytes of the widest of the tensor's types, and every block counts as a whole one.
struct CopyTableView {
  const TensorRoute* routes = nullptr;
  const Tile* tiles = nullptr;
  const std::uint64_t* tile_begin_bytes = nullptr;
  std::uint32_t tensor_count = 0;
  std::uint32_t tile_count = 0;
  std::uint32_t source_tiles = 0;
  CopyCode code = CopyCode::words;
  /// Every tile of every slot begins at a multiple of 16 bytes on both sides, and is a whole number of words of 16
  /// bytes, or of four elements that are converted between fp32 and bf16. No tensor is in another mode.
  bool aligned = false;
  bool has_ds = false;  ///< a conv tensor in mode bytes has the tokens of a channel side by side

  [[nodiscard]] constexpr const Tile& tile_of(std::uint32_t source, std::uint32_t tile) const noexcept {
    return tiles[source * source_tiles + tile];
  }
};

/// Slots of a source and a destination that are images without gaps, with every tensor at the same place of its image:
/// one call of the vendor's runtime copies a state.
struct ImageRoute {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  std::int64_t src_stride_bytes = 0;
  std::int64_t dst_stride_bytes = 0;
  std::size_t bytes = 0;  ///< 0: slots are no images
};

/// The tile table of copies from `sources` to one destination store, in device memory. Tiles hold at most
/// `tile_bytes_max` bytes of the widest type of their tensor; those of one tensor are equal but for the last. Elements
/// that are converted count as fp32. Tiles are in the order of layers, whatever the order of the
/// tensors. A table stays where it is.
class CopyTable {
 public:
  /// Throws InvalidArgument when a source does not fit the destination.
  CopyTable(std::span<const StateStore* const> sources, const StateStore& destination, std::size_t tile_bytes_max);
  /// The same with one source that is not a store: any strides, by which elements may lie at one place.
  CopyTable(std::span<const StateTensorView> source, const StateStore& destination, std::size_t tile_bytes_max);

  CopyTable(const CopyTable&) = delete;
  CopyTable& operator=(const CopyTable&) = delete;

  [[nodiscard]] CopyTableView view() const noexcept { return view(0, layers()); }
  /// The tiles of layers [begin, end). Precondition: 0 <= begin <= end <= layers().
  [[nodiscard]] CopyTableView view(std::int32_t begin, std::int32_t end) const noexcept;
  /// 1 + the last layer of the destination.
  [[nodiscard]] std::int32_t layers() const noexcept { return layer_starts_.back().layer + 1; }
  /// The images of a table of one source whose slots lie in pinned memory of the host and on the device.
  [[nodiscard]] const ImageRoute& image() const noexcept { return image_; }
  /// Whether all tensors are in mode bytes.
  [[nodiscard]] bool moves_bytes() const noexcept { return moves_bytes_; }
  /// The shortest conv window in tokens; INT64_MAX without conv tensors.
  [[nodiscard]] std::int64_t window_min() const noexcept { return window_min_; }

 private:
  using Tensors = std::span<const StateTensorView>;
  struct LayerStart {
    std::int32_t layer;
    std::uint32_t first_tile;
  };

  CopyTable(const std::vector<Tensors>& sources, Tensors destination, std::size_t tile_bytes_max);

  /// Tiles of the layers below `layer`.
  [[nodiscard]] std::uint32_t tiles_before(std::int32_t layer) const noexcept;

  std::uint32_t tensor_count_ = 0;
  std::uint32_t tile_count_ = 0;
  std::vector<LayerStart> layer_starts_;  ///< layers that have tensors, ascending
  CopyCode code_ = CopyCode::words;
  bool aligned_ = true;
  bool has_ds_ = false;
  bool moves_bytes_ = true;
  ImageRoute image_;
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
