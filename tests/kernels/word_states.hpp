// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/transfer.hpp>
#include <stateport/kernels/state_store.hpp>

#include "device_array.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace stateport::test {

/// Slots of three words in one tensor, and their expected words.
class WordStates {
 public:
  static constexpr std::size_t state_words = 3;

  explicit WordStates(std::int32_t slots)
      : words_(first_words(slots)), memory_(words_), store_(StateStore::view({&tensor_, 1}, slots)) {}

  [[nodiscard]] const StateStore& store() const { return store_; }
  void copy(std::int32_t src, std::int32_t dst) {
    const auto from = words_.begin() + src * std::int64_t{state_words};
    std::copy_n(from, state_words, words_.begin() + dst * std::int64_t{state_words});
  }
  [[nodiscard]] bool hold_what_they_must(const Stream& stream) const {
    std::vector<float> held(words_.size());
    copy_bytes(stream, held.data(), tensor_.base, held.size() * sizeof(float));
    stream.synchronize();
    return held == words_;
  }

 private:
  static std::vector<float> first_words(std::int32_t slots) {
    std::vector<float> words(state_words * static_cast<std::size_t>(slots));
    std::iota(words.begin(), words.end(), 1.0F);
    return words;
  }

  std::vector<float> words_;
  test::DeviceArray<float> memory_;
  StateTensorView tensor_{.spec = {.shape = {1, 1, state_words}},
                          .base = reinterpret_cast<std::byte*>(memory_.data()),
                          .slot_stride_bytes = state_words * sizeof(float)};
  StateStore store_;
};

}  // namespace stateport::test
