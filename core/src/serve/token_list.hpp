// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/tokens.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace stateport::detail {

/// The tokens of a request; append() does not allocate after reserve(). Each step appends a few to each of its requests:
/// here that is a comparison and a copy, with the growth of the memory out of the way, where std::vector has it in line.
class TokenList {
 public:
  void assign(std::span<const Token> tokens) {
    size_ = 0;
    append(tokens);
  }
  void reserve(std::size_t tokens) {
    if (tokens > memory_.size()) [[unlikely]]
      grow(tokens - size_);
  }
  void append(std::span<const Token> tokens) {
    if (tokens.size() > memory_.size() - size_) [[unlikely]]
      grow(tokens.size());
    Token* end = memory_.data() + size_;
    for (const Token token : tokens) *end++ = token;
    size_ += tokens.size();
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::span<const Token> all() const noexcept { return {memory_.data(), size_}; }
  [[nodiscard]] std::span<const Token> first(std::int64_t count) const noexcept {
    return all().first(static_cast<std::size_t>(count));
  }

 private:
  void grow(std::size_t more);

  std::vector<Token> memory_;
  std::size_t size_ = 0;
};

}  // namespace stateport::detail
