// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine.hpp"

#include <cstdint>
#include <iosfwd>
#include <string>

namespace stateport::llamacpp {

struct ChatOptions {
  EngineOptions engine;
  std::string system;         ///< the first message; empty: there is none
  std::string chat_template;  ///< one that llama.cpp knows; empty: the model's
  std::int64_t output_tokens = 256;
};

/// Answers each line of `in` as a turn of one conversation. Behind each answer stands how many tokens of the prompt
/// were reused. Throws std::runtime_error for a template that llama.cpp does not know. Returns the exit code.
int chat(const ChatOptions& options, std::istream& in, std::ostream& out);

}  // namespace stateport::llamacpp
