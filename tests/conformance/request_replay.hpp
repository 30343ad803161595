// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "prefix_replay.hpp"
#include "tree_requests.hpp"

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace stateport::conformance {

using test::CheckpointStyle;
using test::TreeRequests;

/// Whole requests on top of PrefixReplay. States are simulated: a slot holds the namespace and the tokens that it has
/// seen, plans are carried out on these, and check_states compares them with the tree.
class RequestReplay : public PrefixReplay {
 public:
  explicit RequestReplay(const PrefixConfig& config);

 protected:
  Json run_other(const Json& op) override;

 private:
  using State = std::pair<Json, std::vector<Token>>;  ///< namespace, tokens

  Json start(const Json& op);
  Json extend(const Json& op);
  Json decode(const Json& op);
  Json finish(const Json& op);
  Json check_states() const;
  void cache_unfinished(RequestId request, const Json& op, Json& result);
  void copy_state(const SlotCopy& copy) { states_[SlotId{copy.dst_slot}] = states_.at(SlotId{copy.src_slot}); }
  [[nodiscard]] State state_at(RequestId request, std::int64_t tokens) const;
  [[nodiscard]] Json copy_json(const SlotCopy& copy) const;
  [[nodiscard]] Json pingpong(RequestId request) const;
  void report(const Freed& freed);

  TreeRequests cache_;
  std::map<std::string, RequestId> requests_;
  std::map<RequestId, Json> namespaces_;
  std::map<SlotId, State> states_;
};

}  // namespace stateport::conformance
