// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tier/transfer_plan.hpp>

#include <cstdint>
#include <tuple>

namespace stateport::test {

inline ImageKey state_image(std::uint64_t prefix, std::int32_t group = 0) {
  return {.prefix = {{prefix, 7}}, .tokens = 16, .group = group};
}
inline ImageKey kv_image(std::uint64_t prefix) {
  return {.prefix = {{prefix, 7}}, .tokens = 16, .content = CacheContent::kv_block};
}
struct KeyOrder {
  bool operator()(const ImageKey& a, const ImageKey& b) const {
    const auto all = [](const ImageKey& key) {
      return std::tuple(key.prefix.words, key.tokens, key.content, key.group);
    };
    return all(a) < all(b);
  }
};

inline Transfer store_to(Medium to, TransferId id, const ImageKey& image, std::int32_t place) {
  return {.id = id, .kind = Transfer::Kind::store, .image = image, .to = to, .place = place};
}
inline Transfer load_from(Medium from, TransferId id, const ImageKey& image, std::int32_t place) {
  return {.id = id, .kind = Transfer::Kind::load, .image = image, .from = from, .to = Medium::device, .place = place};
}
inline Transfer copy_down(TransferId id, const ImageKey& image, Medium from = Medium::host, Medium to = Medium::file) {
  return {.id = id, .kind = Transfer::Kind::copy, .image = image, .from = from, .to = to};
}
inline Transfer find_in_remote(TransferId id, const ImageKey& image) {
  return {.id = id, .kind = Transfer::Kind::find, .image = image, .from = Medium::remote, .to = Medium::remote};
}
inline Transfer drop_from(Medium from, const ImageKey& image) {
  return {.kind = Transfer::Kind::drop, .image = image, .from = from, .to = from};
}

}  // namespace stateport::test
