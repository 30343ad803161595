// SPDX-License-Identifier: Apache-2.0
#include "kv_store.hpp"

#include "numbers.hpp"

#include <cstring>
#include <limits>
#include <utility>
#include <vector>

namespace stateport::engine {

KvStore::KvStore(MemoryResource& memory, std::size_t indices, std::size_t layers, ElementType type)
    : indices_(indices), layers_(layers), type_(type), memory_(memory, offset(0, layers, Part::key)) {
  std::memset(memory_.data(), 0xff, memory_.size_bytes());
}

KvStore::Numbers KvStore::read(KvIndex index, std::size_t layer, Part part) const {
  Numbers numbers;
  load_numbers(type_, memory_.as<std::byte>() + offset(static_cast<std::size_t>(index), layer, part), numbers);
  return numbers;
}

void KvStore::write(KvIndex index, std::size_t layer, Part part, std::span<const float, head_dim> numbers) {
  save_numbers(type_, numbers, memory_.as<std::byte>() + offset(static_cast<std::size_t>(index), layer, part));
}

void KvStore::forget(KvIndex first, std::int32_t count) {
  Numbers never;
  never.fill(std::numeric_limits<float>::quiet_NaN());
  for (std::size_t layer = 0; layer < layers_; ++layer)
    for (KvIndex index = first; index < first + count; ++index)
      for (const Part part : {Part::key, Part::value}) write(index, layer, part, never);
}

void KvStore::copy(KvIndex from, KvIndex to, std::int32_t count) {
  for (std::size_t layer = 0; layer < layers_; ++layer)
    for (KvIndex i = 0; i < count; ++i)
      for (const Part part : {Part::key, Part::value}) write(to + i, layer, part, read(from + i, layer, part));
}

StateSpec KvStore::spec(std::size_t layers, std::int32_t block_size, ElementType type) {
  std::vector<StateTensorSpec> tensors;
  for (std::size_t layer = 0; layer < layers; ++layer)
    tensors.push_back({.layer = static_cast<std::int32_t>(layer),
                       .type = type,
                       .shape = {block_size, 2, static_cast<std::int64_t>(head_dim)}});
  return StateSpec(std::move(tensors));
}

StateStore KvStore::blocks(std::int32_t block_size) {
  const StateSpec spec = KvStore::spec(layers_, block_size, type_);
  std::vector<StateTensorView> views;
  for (std::size_t layer = 0; layer < layers_; ++layer)
    views.push_back({.spec = spec.tensors()[layer],
                     .base = memory_.as<std::byte>() + offset(0, layer, Part::key),
                     .slot_stride_bytes = static_cast<std::int64_t>(spec.tensors()[layer].natural_bytes())});
  return StateStore::view(views, static_cast<std::int32_t>(indices_) / block_size);
}

}  // namespace stateport::engine
