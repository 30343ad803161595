// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/ids.hpp>

#include "containers/assert.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>

namespace stateport::detail {

/// The tokens of a request, at most as many as the constructor has reserved address space for. Each step appends a few
/// to each of its requests: here that is a copy, where std::vector would first look whether it has to grow.
class TokenList {
 public:
  TokenList() = default;
  explicit TokenList(std::size_t capacity)
      : memory_(std::make_unique_for_overwrite<Token[]>(capacity)), capacity_(capacity) {}

  void assign(std::span<const Token> tokens) noexcept {
    size_ = 0;
    append(tokens);
  }
  /// The list has `count` tokens, which fill_skipped() fills in later.
  void skip(std::size_t count) noexcept {
    STATEPORT_ASSERT(count <= capacity_);
    size_ = count;
  }
  void fill_skipped(std::span<const Token> tokens) const noexcept { std::ranges::copy(tokens, memory_.get()); }
  void append(std::span<const Token> tokens) noexcept {
    STATEPORT_ASSERT(tokens.size() <= capacity_ - size_);
    Token* end = memory_.get() + size_;
    size_ += tokens.size();
    if (tokens.size() == 1) [[likely]] {  // a step without drafts
      *end = tokens[0];
      return;
    }
    for (const Token token : tokens) *end++ = token;
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::span<const Token> all() const noexcept { return {memory_.get(), size_}; }
  [[nodiscard]] std::span<const Token> first(std::int64_t count) const noexcept {
    return all().first(static_cast<std::size_t>(count));
  }

 private:
  std::unique_ptr<Token[]> memory_;
  std::size_t capacity_ = 0;
  std::size_t size_ = 0;
};

}  // namespace stateport::detail
