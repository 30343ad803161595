// SPDX-License-Identifier: Apache-2.0
// The model of these examples: a recurrent state, and KV of one number a token. It stands for a real one: the state
// after n tokens follows from these tokens in their order, and an answer depends on the state and on all of the KV. All
// numbers are whole and small, so that every order of work gives the same bits.
#pragma once

#include <stateport/core/model/ids.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <span>
#include <vector>

namespace toy {

using stateport::Token;
using Tokens = std::vector<Token>;
using State = std::array<float, 64>;
using Kv = float;

constexpr std::size_t answer_tokens = 24;

/// The state after one more token.
inline void feed(State& state, Token token) {
  for (std::size_t i = 0; i < state.size(); ++i)
    state[i] = std::fmod(31 * state[i] + static_cast<float>(token) + static_cast<float>(i), 65521.0f);
}

inline Kv kv_of(Token token) {
  return static_cast<Kv>(token % 89);
}

/// The next token, from the state and the sum over the KV of all tokens before it.
inline Token sample(const State& state, float attention) {
  return static_cast<Token>(std::fmod(state[0] + state[63] + attention, 997.0f));
}

/// Three questions behind one system prompt, and the first of them once more, with its answer and another question.
inline std::vector<Tokens> prompts_for(const Tokens& first_answer) {
  std::vector<Tokens> prompts;
  for (const Token question : {100, 200, 300}) {
    Tokens prompt(50);
    std::iota(prompt.begin(), prompt.end(), 1);
    for (Token i = 0; i < 20; ++i) prompt.push_back(question + i);
    prompts.push_back(prompt);
  }
  prompts.push_back(prompts[0]);
  prompts.back().insert(prompts.back().end(), first_answer.begin(), first_answer.end());
  for (Token i = 0; i < 10; ++i) prompts.back().push_back(400 + i);
  return prompts;
}

// docs: compute everything
/// The answer to a prompt, by an engine that keeps nothing. Adds the tokens that it computes to `computed`.
inline Tokens answer_alone(const Tokens& prompt, std::size_t& computed) {
  Tokens tokens = prompt;
  State state = {};
  std::vector<Kv> kv;
  while (tokens.size() < prompt.size() + answer_tokens) {
    for (std::size_t next = kv.size(); next < tokens.size(); ++next) {
      feed(state, tokens[next]);
      kv.push_back(kv_of(tokens[next]));
      ++computed;
    }
    tokens.push_back(sample(state, std::reduce(kv.begin(), kv.end())));
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()), tokens.end()};
}
// docs end

/// The prompts, and the answers that every engine must give.
struct Work {
  std::vector<Tokens> prompts;
  std::vector<Tokens> answers;
  std::size_t tokens = 0;  ///< that an engine computes that keeps nothing

  Work() {
    std::size_t ignored = 0;
    prompts = prompts_for(answer_alone(prompts_for({})[0], ignored));
    for (const Tokens& prompt : prompts) answers.push_back(answer_alone(prompt, tokens));
  }
};

inline void expect(bool ok, const char* problem) {
  if (ok) return;
  std::fprintf(stderr, "%s\n", problem);
  std::exit(1);
}

}  // namespace toy
