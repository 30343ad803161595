// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache.hpp"
#include "model.hpp"

#include <cstddef>
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
  std::vector<std::int64_t> breakpoints = {};  ///< Prompt::breakpoints
  std::int32_t fork_of = -1;  ///< the prompt begins with the first `fork_at` tokens of this request and its answer
  std::int64_t fork_at = 0;
};

struct PlannedEvent {
  enum class Kind : std::uint8_t {
    preempt,
    abort,
    reset,
    weights,  ///< they change, of all requests
    forget,   ///< they change, of the requests of one tenant: of even ids if `request` is even
    restart,  ///< the cache is written to files, the engine ends, and another one takes its place
    crash     ///< it ends as it is
  };
  Kind kind = Kind::reset;
  std::int32_t step = 0;
  /// Of preempt and abort; without effect if it does not run then. Weights, forget: not a multiple of 3: requests that
  /// are stale then start again.
  std::int32_t request = -1;
};

/// Before the schedule another engine serves it and leaves its images in the folder. Its states are of no use.
enum class OtherEngine : std::uint8_t {
  none,
  other_type,   ///< states and KV have as many bytes, and mean something else
  other_layout  ///< of conv states; its KV is as good as our own
};

/// Everything that a run depends on, beside the cache. Plain data, so that a failing one can be cut down.
struct Schedule {
  std::uint64_t seed = 0;
  CacheOptions cache;
  float draft_noise = 0.0f;
  std::int32_t budget_tokens = 1;  ///< of a step, at least two blocks
  OtherEngine other_engine = OtherEngine::none;
  std::vector<PlannedRequest> requests;
  std::vector<PlannedEvent> events;

  [[nodiscard]] std::size_t causes() const { return requests.size() + events.size(); }
};

/// The output of a request; `state` is the state after all of its tokens but the last. Not `complete`: it was aborted.
struct Answer {
  std::vector<Token> tokens;
  ModelState state;
  bool complete = false;
  std::vector<Began> began = {};
};

/// The models of a schedule: one of a few, so that they are made once.
[[nodiscard]] const Model& target_model(std::uint64_t seed, ElementType type = ElementType::fp32);
[[nodiscard]] inline const Model& target_model(const Schedule& schedule) {
  return target_model(schedule.seed, schedule.cache.type);
}
[[nodiscard]] Model draft_model(const Schedule& schedule);

/// The oracle: the model's answer to a prompt, one request alone, without scheduler, cache or store.
[[nodiscard]] Answer answer_alone(const Model& model, const std::vector<Token>& prompt, std::int32_t new_tokens);

/// What the oracle's weights give where `answer` says that the request began with other weights, and went on with them.
[[nodiscard]] Answer answer_in_epochs(const Schedule& schedule, const PlannedRequest& request, const Answer& answer);

/// A schedule and its oracle's answers, by request id.
struct Problem {
  Schedule schedule;
  std::vector<Answer> answers;
};
/// Parameters that are given instead of drawn.
struct Draw {
  std::optional<std::int32_t> drafts = {};
  bool trees = false;  ///< there are drafts, and in caches with slots they are trees
  bool overlap = false;
  /// Below a device with room for two checkpoints there are a host and files; overlap is drawn, too.
  bool tiers = false;
  bool tenants = false;    ///< see CacheOptions
  bool held = false;       ///< the same
  bool arena = false;      ///< KV and states share one, in caches in slots
  bool named = false;      ///< prompts name positions, and some caches leave states before tails
  bool weights = false;    ///< they change while requests run
  bool bursts = false;     ///< requests with a common prefix come at once, and may wait for each other
  bool forks = false;      ///< requests go on from what others have computed
  bool integrity = false;  ///< checkpoints are checked
  bool damage = false;     ///< and something writes to them
  /// A trainer's rollouts: 100 requests, of which 8 run at a time and 20 arrive with each version of the weights.
  bool rollouts = false;
};
/// Requests that share prefixes, continue each other's answers and come while others run, in too little memory, with
/// preemptions, aborts and resets; with tiers also restarts, and folders that another engine has used.
[[nodiscard]] Problem draw_problem(std::uint64_t seed, const Draw& draw = {});

/// The schedule of the engine that has used the folder before.
[[nodiscard]] Schedule other_schedule(const Schedule& schedule);

std::ostream& operator<<(std::ostream& out, const Schedule& schedule);

}  // namespace stateport::engine
