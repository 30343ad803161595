// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/element_type.hpp>
#include <stateport/core/model/model_layout.hpp>
#include <stateport/core/tier/transfer_plan.hpp>
#include <stateport/kernels/state_store.hpp>
#include <stateport/tiers/image.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stateport {

/// How checkpoints are cut into objects. Those who exchange objects have equal grids.
struct ObjectGrid {
  std::int32_t head_groups = 1;        ///< a multiple of every tensor-parallel size in use
  std::int32_t layers_per_object = 0;  ///< pipeline stages begin at multiples of it. 0: all layers
  friend constexpr bool operator==(const ObjectGrid&, const ObjectGrid&) noexcept = default;
};

/// Element types of the tensors of objects. Nothing: those of ModelLayout::whole().
struct ObjectEncoding {
  std::optional<ElementType> conv;
  std::optional<ElementType> recurrent;
  friend constexpr bool operator==(const ObjectEncoding&, const ObjectEncoding&) noexcept = default;
};

struct ObjectSetOptions {
  ModelId model;
  CacheContent content = CacheContent::state;
  std::int32_t group = 0;  ///< of a state: ImageKey::group. 0 for KV
  ObjectGrid grid;
  ObjectEncoding encoding;
};

/// The objects that a rank's share of a checkpoint, or of the KV of a block, consists of. An object is the part of some
/// layers that rank g of a tensor-parallel group of grid.head_groups ranks would hold: an image (image.hpp) in conv
/// layout sd, whose header names the model's layout, not the rank's. So ranks of every number write and read the same
/// objects, each as many as its share has.
///
///     offset(0)        offset(1)                         bytes()
///     | object 0       | object 1       | …              |
///     | header, sections | header, sections
///
/// Immutable: any number of threads may use it.
class ObjectSet {
 public:
  static constexpr std::int32_t objects_max = 16384;

  /// Throws InvalidArgument as ModelLayout::resolve, ImageLayout and StateSpec; for a grid whose head_groups are no
  /// multiple of those of `rank`, whose layers do not end where those of `rank` do, layers_per_object < 0, more than
  /// objects_max objects, and element types into which the layout's cannot be converted.
  ObjectSet(const ModelLayout& layout, const ModelShard& rank, const ObjectSetOptions& options);

  [[nodiscard]] const ObjectSetOptions& options() const noexcept { return options_; }
  [[nodiscard]] std::size_t size() const noexcept { return objects_.size(); }
  [[nodiscard]] const ImageLayout& layout(std::size_t object) const noexcept { return objects_[object]; }
  [[nodiscard]] const ModelShard& shard(std::size_t object) const noexcept { return objects_[object].options().shard; }
  [[nodiscard]] std::size_t offset(std::size_t object) const noexcept { return offsets_[object]; }
  /// Of all objects. A multiple of ImageLayout::alignment_bytes.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::span<std::byte> part(std::span<std::byte> set, std::size_t object) const {
    return set.subspan(offset(object), layout(object).image_bytes());
  }

  /// The name of an object in a store: equal for all who mean the same content in the same encoding and version of the
  /// format, and for no others.
  /// Up to 200 characters from '!' to '~'.
  [[nodiscard]] std::string name(std::size_t object, const ImageKey& key) const;

  /// Object `object` of `places` sets in memory, set p at base + p * stride_bytes, as a store with p as slot.
  [[nodiscard]] StateStore view(std::size_t object, std::byte* base, std::size_t stride_bytes,
                                std::int32_t places) const;

  /// Writes headers with checksums before the sections. `set`: bytes() bytes. Throws InvalidArgument as
  /// ImageLayout::seal.
  void seal(std::span<std::byte> set, const ImageKey& key) const;
  /// Whether every object is the one that `key` names, whole and undamaged: done, or the worst answer of
  /// ImageLayout::check. `set`: bytes() bytes.
  [[nodiscard]] TransferStatus check(std::span<const std::byte> set, const ImageKey& key) const noexcept;

 private:
  ObjectSetOptions options_;
  std::vector<ImageLayout> objects_;
  std::vector<std::size_t> offsets_;
  std::vector<std::string> names_;  ///< the part that all keys have in common
  std::size_t bytes_ = 0;
};

}  // namespace stateport
