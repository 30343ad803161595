// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/block_hash.hpp>
#include <stateport/core/model/model_layout.hpp>
#include <stateport/core/model/state_spec.hpp>
#include <stateport/core/tier/transfer_plan.hpp>
#include <stateport/tiers/checksum.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

/// An image: the state of one group of layers, or the KV of one block, as bytes that explain themselves. The bytes are
/// the same in host memory, in a file and on a wire.
///
///     0                header_bytes                                                        image_bytes
///     | header, table  | section of tensor 0, padding | section of tensor 1, padding | …  |
///
/// Header and sections begin at multiples of 4 KiB. A section holds the natural bytes of one tensor; the padding behind
/// it means nothing and no checksum covers it. All numbers are little endian, signed ones in two's complement. Bytes
/// that are not named are zero. A checksum is two words.
///
///     offset bytes  header
///          0     8  magic: 89 53 50 49 4d 47 0d 0a
///          8     4  version of the format: 1
///         12     4  header_bytes: the smallest multiple of 4096 that holds header and table
///         16     8  image_bytes
///         24    16  checksum of the first header_bytes bytes, with these 16 as zero
///         40    16  model id, two words
///         56     8  layout fingerprint: StateSpec::fingerprint() of ImageLayout::spec(), or
///         ImageLayoutOptions::fingerprint 64     8  tokens 72    16  prefix hash, two words 88     4  content: 0 KV of
///         a block, 1 state 92     4  group 96    16  shard, 4 x 4 bytes: first layer, end layer, head group, number of
///         head groups; zero: the whole
///        112     4  number of tensors
///        128  96 n  table of tensors, in the order of the spec
///
///     offset bytes  entry of the table
///          0     4  layer
///          4     4  group
///          8     1  kind: 0 conv, 1 recurrent
///          9     1  type: the number of the ElementType
///         10     1  encoding: 0, as the type says
///         16    24  shape, three extents
///         40    16  strides of token and channel, in elements; zero for a recurrent tensor
///         56     8  offset of the section from the beginning of the image
///         64     8  bytes of the section, without padding
///         72    16  checksum of the section
///
/// The first 40 bytes mean the same in every version: a reader can tell an image of another version from a damaged one.
namespace stateport {

/// Names the model whose states an engine keeps: weights, revision, whatever makes states of two models differ.
struct ModelId {
  std::array<std::uint64_t, 2> words = {0, 0};

  constexpr ModelId() noexcept = default;
  constexpr explicit ModelId(std::uint64_t number) noexcept : words{number, 0} {}
  /// XXH3-128 of the text: equal on every machine.
  explicit ModelId(std::string_view text) noexcept;
  friend constexpr bool operator==(const ModelId&, const ModelId&) noexcept = default;
};

struct ImageLayoutOptions {
  ModelId model;
  CacheContent content = CacheContent::state;
  std::int32_t group = 0;  ///< of a state: ImageKey::group. 0 for KV
  ModelShard shard;
  /// Of objects that ranks of any number exchange: ModelLayout::fingerprint(). 0: that of the spec.
  std::uint64_t fingerprint = 0;
};

/// The layout of the images of one content of one model. Immutable: any number of threads may use it.
class ImageLayout {
 public:
  static constexpr std::uint32_t version = 1;
  /// Everything begins at multiples of this, and image_bytes() is one: O_DIRECT transfers need it.
  static constexpr std::size_t alignment_bytes = 4096;
  static constexpr std::size_t tensors_max = 16384;

  /// Throws InvalidArgument: more than tensors_max tensors, a negative group, a group of KV, a shard without layers or
  /// with a head group that it does not have.
  ImageLayout(const StateSpec& spec, const ImageLayoutOptions& options);

  /// The spec of the sections, without gaps. A conv tensor with gaps becomes sd; SlotCopier rearranges it.
  [[nodiscard]] const StateSpec& spec() const noexcept { return spec_; }
  [[nodiscard]] const ImageLayoutOptions& options() const noexcept { return options_; }
  [[nodiscard]] std::size_t header_bytes() const noexcept { return header_.size(); }
  [[nodiscard]] std::size_t image_bytes() const noexcept { return image_bytes_; }
  /// Where the section of tensor `i` of the spec begins, from the beginning of the image.
  [[nodiscard]] std::size_t section_offset(std::size_t tensor) const noexcept { return section_offsets_[tensor]; }
  [[nodiscard]] std::size_t section_bytes(std::size_t tensor) const noexcept {
    return spec_.tensors()[tensor].natural_bytes();
  }
  /// Whether images of this layout have such keys: content and group are equal.
  [[nodiscard]] bool holds(const ImageKey& key) const noexcept {
    return key.content == options_.content && key.group == options_.group;
  }

  /// Sets the padding to zero in bytes [begin, begin + part.size()) of an image: the bytes that lay there before may be
  /// another tenant's.
  void clear_padding(std::span<std::byte> part, std::size_t begin = 0) const noexcept;
  /// Computes the checksums of the sections, clears the padding and writes the header before them. `image`:
  /// image_bytes() bytes. Throws InvalidArgument: a key that the layout does not hold, negative tokens, another size.
  void seal(std::span<std::byte> image, const ImageKey& key) const;
  /// The same with checksums that are known, one per tensor, into `header`: header_bytes() bytes.
  void write_header(std::span<std::byte> header, const ImageKey& key, std::span<const Checksum> sections) const;

  /// Whether `image` is the one that `key` names, whole and undamaged: done, damaged, foreign_layout or wrong_position.
  /// Reads every byte. Fewer bytes than an image has are damage; more are ignored.
  [[nodiscard]] TransferStatus check(std::span<const std::byte> image, const ImageKey& key) const noexcept;
  /// The same for the header alone: about 1 us.
  [[nodiscard]] TransferStatus check_header(std::span<const std::byte> header, const ImageKey& key) const noexcept;
  /// The checksum that a header, which was checked, gives for the section of `tensor`.
  [[nodiscard]] Checksum section_checksum(std::span<const std::byte> header, std::size_t tensor) const noexcept;

 private:
  ImageLayoutOptions options_;
  StateSpec spec_;
  std::size_t image_bytes_ = 0;
  std::vector<std::size_t> section_offsets_;
  std::vector<std::byte> header_;  ///< of every image, but for key and checksums
};

/// The header of an image of any layout.
struct ImageFacts {
  std::uint32_t version = 0;
  std::size_t header_bytes = 0;
  std::size_t image_bytes = 0;
  /// Only of an image of ImageLayout::version.
  ImageKey key;
};

/// Reads how many bytes the header has from its first 32, unverified. Nothing: no image begins here.
[[nodiscard]] std::optional<std::size_t> image_header_bytes(std::span<const std::byte> bytes) noexcept;
/// Reads a header and verifies its checksum. Nothing: it is damaged, not whole, or none, or has values that no seal
/// writes, as negative tokens.
[[nodiscard]] std::optional<ImageFacts> read_image_facts(std::span<const std::byte> header) noexcept;

}  // namespace stateport
