// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/kv_page_pool.hpp>
#include <stateport/core/tree/prefix_tree.hpp>

#include "suite.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stateport::conformance {

/// The configuration of a recorded prefix tree, with the defaults of the recordings.
struct PrefixConfig {
  explicit PrefixConfig(const Json& config);
  std::int32_t page_size;
  std::int64_t kv_size;
  std::int32_t states;
  std::int32_t chunk;
  std::int32_t cap;
  bool extra_buffer;
  std::int64_t track_interval;
  bool split_refreshes_state;  ///< as the older rule had it
};

/// One tree with its two pools, driven by recorded operations. Recorded slots are numbered from 1, ours from 0; a
/// recorded slot that belongs to no pool ("foreign") is stood in for by a slot that is set aside at the start.
class PrefixReplay {
 public:
  explicit PrefixReplay(const PrefixConfig& config);
  virtual ~PrefixReplay() = default;

  /// Executes one operation and gives its result in the recorded form.
  Json run(const Json& op);

 protected:
  /// Executes the operations that this class does not know; throws for an unknown one.
  virtual Json run_other(const Json& op);

  [[nodiscard]] Json path_of(NodeId node) const;
  [[nodiscard]] Json slot_json(SlotId slot) const;
  /// Gives freed KV back to the pool; slots are back already.
  void give_back(const Freed& freed);

  PrefixConfig config_;
  PrefixTree tree_;
  KvPagePool kv_pool_;
  Json kv_freed_;     ///< of the operation that runs
  Json slots_freed_;  ///< of the operation that runs

 private:
  Json match(const Json& op);
  Json insert(const Json& op);
  Json evict(const Json& op);
  Json dump() const;
  Json sizes() const;
  /// Looks up the prefix that the operation looks up first, and notes the lengths of the tree's nodes then.
  void look_ahead(const Json& op);
  /// The older rule: a state is as recent as its node if the node has become shorter.
  void refresh_shortened();
  [[nodiscard]] SlotId foreign_slot(std::int32_t recorded);

  std::map<std::string, NodeId> labels_;
  std::map<std::string, std::vector<PrefixLock>> locks_;
  std::map<std::string, SlotId> live_slots_;
  std::vector<SlotId> set_aside_;
  std::map<std::int32_t, SlotId> foreign_;  ///< by recorded number
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t>
      segment_tokens_;  ///< by index and generation of a node
};

/// The namespace of an operation: null, or [extra key or null, salt or null].
struct NamespaceOf {
  explicit NamespaceOf(const Json& op);
  [[nodiscard]] Namespace view() const noexcept { return {extra_key, salt}; }
  std::optional<std::string> extra_key;
  std::optional<std::string> salt;
};

/// A prefix in the recorded form: [tokens], or {ns, tokens} in a named namespace.
[[nodiscard]] Json path_json(const Namespace& name_space, const std::vector<Token>& tokens);

}  // namespace stateport::conformance
