// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/ids.hpp>

#include "mark_world.hpp"
#include "random_numbers.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace stateport::soak {

/// The names of a prompt. Prompts with different names share nothing.
struct Names {
  static constexpr std::int32_t tenants = 4;
  std::int32_t tenant = 0;  ///< 0: none. 1: a salt. 2: another. 3: an adapter
  std::int32_t media = 0;
  std::int64_t media_at = -1;  ///< -1: there is none

  /// The token at a position, with its names.
  [[nodiscard]] std::uint64_t seen(std::int64_t position, Token token) const noexcept {
    const bool is_after = media_at >= 0 && position >= media_at;
    return static_cast<std::uint64_t>(token) + (static_cast<std::uint64_t>(tenant) << 32) +
           (is_after ? static_cast<std::uint64_t>(media + 1) << 40 : 0);
  }
};

struct WorkloadOptions {
  std::int32_t conversations = 96;  ///< that go on at a time
  std::int64_t tokens_max = 224;    ///< of a prompt
  std::int64_t output_max = 24;     ///< tokens
};

/// Requests of conversations. They begin with one of a few system prompts, go on for some turns, and some of them are
/// edited: the next prompt leaves the last one in the middle. As many are remembered as go on at a time.
class Workload {
 public:
  using Tokens = std::vector<Token>;
  struct Request {
    Tokens prompt;
    Names names;
    std::int64_t output = 1;  ///< tokens
    std::size_t conversation = 0;
    std::uint64_t turn = 0;
  };

  Workload(test::Random& random, const WorkloadOptions& options);

  [[nodiscard]] Request next();
  /// The request of this turn ended with these tokens.
  void ended(const Request& request, const Tokens& tokens);

 private:
  struct Conversation {
    Tokens tokens;
    Names names;
    std::uint64_t turn = 0;  ///< numbers all turns of all conversations
  };
  void begin(Conversation& conversation);
  void append(Tokens& tokens, std::int64_t count);

  test::Random& random_;
  WorkloadOptions options_;
  std::array<Tokens, 12> system_prompts_;
  std::vector<Conversation> conversations_;
  std::uint64_t turns_ = 0;
};

}  // namespace stateport::soak
