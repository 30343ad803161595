// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache.hpp"
#include "model.hpp"

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <vector>

namespace stateport::engine {

struct PlannedRequest {
  std::int32_t id = 0;
  std::int32_t arrival_step = 0;
  std::vector<Token> prompt;
  std::int32_t new_tokens = 1;
};

struct PlannedEvent {
  enum class Kind : std::uint8_t { preempt, abort, reset };
  Kind kind = Kind::reset;
  std::int32_t step = 0;
  std::int32_t request = -1;  ///< of preempt and abort; without effect if it does not run then
};

/// Everything that a run depends on, beside the cache. Plain data, so that a failing one can be cut down.
struct Schedule {
  std::uint64_t seed = 0;
  CacheOptions cache;
  float draft_noise = 0.0f;
  std::int32_t budget_tokens = 1;  ///< of a step, at least two blocks
  std::vector<PlannedRequest> requests;
  std::vector<PlannedEvent> events;
};

/// What a request produced; `state` is the one after all of its tokens but the last. Not `complete`: it was aborted.
struct Answer {
  std::vector<Token> tokens;
  ModelState state;
  bool complete = false;
};

/// The models of a schedule: one of a few, so that they are made once.
[[nodiscard]] const Model& target_model(std::uint64_t seed);
[[nodiscard]] Model draft_model(const Schedule& schedule);

/// What the model says to a prompt, one request alone, without scheduler, cache or store: the oracle.
[[nodiscard]] Answer answer_alone(const Model& model, const std::vector<Token>& prompt, std::int32_t new_tokens);

/// A schedule and its oracle's answers, by request id.
struct Problem {
  Schedule schedule;
  std::vector<Answer> answers;
};
/// Requests that share prefixes, continue each other's answers and come while others run, in too little memory, with
/// preemptions, aborts and resets. `drafts`: not drawn but given.
[[nodiscard]] Problem draw_problem(std::uint64_t seed, std::optional<std::int32_t> drafts = std::nullopt,
                                   bool overlap = false);

std::ostream& operator<<(std::ostream& out, const Schedule& schedule);

}  // namespace stateport::engine
