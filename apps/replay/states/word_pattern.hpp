// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "workload/content.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace stateport::replay {

/// The element of a stand-in's states.
struct alignas(16) Word {
  std::uint64_t low;
  std::uint64_t high;

  [[nodiscard]] friend KOKKOS_FUNCTION Word operator^(const Word& a, const Word& b) {
    return {a.low ^ b.low, a.high ^ b.high};
  }
  [[nodiscard]] friend KOKKOS_FUNCTION bool operator!=(const Word& a, const Word& b) {
    return a.low != b.low || a.high != b.high;
  }
};

/// The words of one tensor under one prefix: cheap per word, so that making a state takes as long as moving it.
class Pattern {
 public:
  /// Each eight bytes of a word are random where `random_bits` says so, and `fixed_bits` elsewhere.
  KOKKOS_FUNCTION Pattern(Content content, std::uint64_t tensor, std::uint64_t random_bits, std::uint64_t fixed_bits)
      : random_bits_(random_bits), fixed_bits_(fixed_bits), empty_(content == empty_content) {
    seed_ = (content ^ (tensor * 0x9e3779b97f4a7c15U)) * 0xd6e8feb86659fd93U;
    seed_ ^= seed_ >> 32;
  }
  [[nodiscard]] KOKKOS_FUNCTION Word word(std::uint64_t index) const {
    if (empty_) return {0, 0};
    return {((seed_ + index * 0x9e3779b97f4a7c15U) & random_bits_) | fixed_bits_,
            ((~seed_ + index * 0xc2b2ae3d27d4eb4fU) & random_bits_) | fixed_bits_};
  }

 private:
  std::uint64_t seed_;
  std::uint64_t random_bits_;
  std::uint64_t fixed_bits_;
  bool empty_;
};

}  // namespace stateport::replay
