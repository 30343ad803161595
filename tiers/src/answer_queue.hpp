// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace stateport::tiers {

/// Answers in their order, until they are handed out. Whoever accepts a request makes room for its answer.
template <class Answer>
class AnswerQueue {
 public:
  /// Makes room for so many answers that are not handed out. Elements that were may take as much again.
  void prepare(std::size_t count) {
    if (2 * count > answers_.capacity()) answers_.reserve(2 * std::max(count, answers_.capacity()));
  }
  /// Precondition: prepare().
  void push(const Answer& answer) noexcept { answers_.push_back(answer); }
  /// Not handed out.
  [[nodiscard]] std::size_t size() const noexcept { return answers_.size() - handed_out_; }
  /// Returns how many.
  std::size_t hand_out(std::span<Answer> out) noexcept {
    const std::size_t count = std::min(out.size(), size());
    std::copy_n(answers_.begin() + static_cast<std::ptrdiff_t>(handed_out_), count, out.begin());
    handed_out_ += count;
    if (2 * handed_out_ < answers_.size()) return count;
    answers_.erase(answers_.begin(), answers_.begin() + static_cast<std::ptrdiff_t>(handed_out_));
    handed_out_ = 0;
    return count;
  }

 private:
  std::vector<Answer> answers_;
  std::size_t handed_out_ = 0;
};

}  // namespace stateport::tiers
