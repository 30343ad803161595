// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "prefix_replay.hpp"
#include "suite.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace stateport::conformance {

/// Recorded requests through make_request_cache() with the index `tree`, as an engine drives it. Results hold the facts
/// that an engine sees: reused tokens, slots, copies, KV rows. Trees, locks and pools are not visible; RequestReplay
/// has them. Plans are carried out on simulated states: a slot holds the namespace and the tokens that it has seen.
class TreeLife {
 public:
  /// `ops`: all of them, because the pass that ends a prompt samples the first token of a later req_decode.
  TreeLife(const PrefixConfig& config, const Json& ops);

  /// Runs one op and compares with its recorded result. Ops that are not of requests are skipped.
  void run(const Json& op, const Json& recorded);

 private:
  using State = std::pair<Json, std::vector<Token>>;  ///< namespace, tokens

  void start(const Json& op, const Json& recorded);
  void extend(const Json& op, const Json& recorded);
  void decode(const Json& op, const Json& recorded);
  /// Plans and enqueues one pass. Gives its copies in the recorded form.
  Json plan(RequestId request, std::int64_t tokens);
  /// Commits that pass, which sampled these tokens, and gives the copies after it.
  Json commit(std::span<const Token> sampled);
  [[nodiscard]] Json run_copies(CopyPlan copies);
  [[nodiscard]] State state_at(RequestId request, std::int64_t tokens) const;

  std::unique_ptr<RequestCache> cache_;
  PassId pass_ = 0;         ///< planned last
  std::size_t free_slots_;  ///< of the recorded pool, before the op that runs
  std::map<std::string, RequestId> requests_;
  std::map<std::string, std::vector<Token>> outputs_;  ///< tokens that requests have not sampled yet
  std::map<RequestId, Json> namespaces_;
  std::map<SlotId, State> states_;
};

}  // namespace stateport::conformance
