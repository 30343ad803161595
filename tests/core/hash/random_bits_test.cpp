// SPDX-License-Identifier: Apache-2.0
#include "hash/random_bits.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <set>

namespace {

using stateport::detail::random_bits;

}  // namespace

TEST_CASE("every one of 64 random bits is set in some words and clear in others, and no word comes twice") {
  std::set<std::uint64_t> words;
  std::uint64_t any = 0;
  std::uint64_t all = ~std::uint64_t{0};
  // A bit that is alike in 64 words: a chance of 64 / 2^63.
  for (int i = 0; i < 64; ++i) {
    const std::uint64_t word = random_bits();
    any |= word;
    all &= word;
    words.insert(word);
  }
  CHECK(any == ~std::uint64_t{0});
  CHECK(all == 0);
  CHECK(words.size() == 64);
}
