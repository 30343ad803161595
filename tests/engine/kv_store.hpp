// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/memory_resource.hpp>
#include <stateport/core/model/element_type.hpp>
#include <stateport/core/tree/prefix_types.hpp>
#include <stateport/kernels/state_store.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace stateport::engine {

/// The engine's KV: a key and a value per index and attention layer. An entry that was never written is NaN.
class KvStore {
 public:
  static constexpr std::size_t head_dim = 8;
  enum class Part : std::uint8_t { key, value };
  using Numbers = std::array<float, head_dim>;

  /// `memory`: of the host, or pinned if kernels copy from it. It must outlive the KV.
  KvStore(MemoryResource& memory, std::size_t indices, std::size_t layers, ElementType type = ElementType::fp32);

  [[nodiscard]] Numbers read(KvIndex index, std::size_t layer, Part part) const;
  void write(KvIndex index, std::size_t layer, Part part, std::span<const float, head_dim> numbers);

  /// As if indices [first, first + count) had never been written.
  void forget(KvIndex first, std::int32_t count);

  /// Copies indices [from, from + count) to [to, to + count).
  void copy(KvIndex from, KvIndex to, std::int32_t count);

  /// The tensors of one block: a tensor [block_size, 2, head_dim] for each layer.
  [[nodiscard]] static StateSpec spec(std::size_t layers, std::int32_t block_size, ElementType type);
  /// The KV as a store in which a slot is a block.
  [[nodiscard]] StateStore blocks(std::int32_t block_size);

 private:
  [[nodiscard]] std::size_t offset(std::size_t index, std::size_t layer, Part part) const {
    return (((layer * indices_ + index) * 2) + static_cast<std::size_t>(part)) * head_dim * element_bytes(type_);
  }

  std::size_t indices_;
  std::size_t layers_;
  ElementType type_;
  Buffer memory_;  ///< [layers, indices, 2, head_dim]
};

}  // namespace stateport::engine
