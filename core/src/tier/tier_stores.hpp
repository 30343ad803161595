// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/ids.hpp>

#include "tier/admission.hpp"
#include "tier/residency.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::detail {

/// Follows the contents of the device, and stores contents that the device evicts: in the fastest tier in which they
/// are worth their place.
///
/// Contents that leave the device are collected during a call of the cache. flush() stores them at its end: states
/// first, then KV, from the beginning of a prompt on.
class TierStores {
 public:
  TierStores(const TierSetup& setup, Residency& contents, Admission& admission);

  void kv_stored(const PrefixHash& prefix, const PrefixHash& parent, std::int64_t tokens, std::int32_t block,
                 const NamespaceTag& tag);
  void kv_lost(const PrefixHash& prefix);
  /// KV of the device lies elsewhere: that of block b in block moved_to[b], if that is not negative. O(nodes).
  void kv_moved(std::span<const std::int32_t> moved_to);
  /// The state of one group lies in `slot`, once the copies have run that the current call of the cache answers.
  void state_stored(const PrefixHash& prefix, std::size_t group, SlotId slot);
  void state_lost(const PrefixHash& prefix, std::size_t group);
  /// The state is wrong: no tier has it any more, and the current call does not store it.
  void withdraw_state(const PrefixHash& prefix);

  /// Ends a call of the cache.
  void flush();
  /// Writes all states of faster media to the durable tier, with their KV, as far as there is room. They stay where
  /// they are. Only contents that no faster medium has make room, so the call comes to an end. O(nodes).
  void drain();
  void clear() noexcept;

 private:
  struct Leaving {
    std::uint32_t node = TierNode::none;
    std::int64_t tokens = 0;
  };

  [[nodiscard]] bool store(std::uint32_t node, CacheContent content, Medium to);
  void store_state(std::uint32_t node);
  void store_kv(std::uint32_t node);
  void write_through(std::uint32_t node);
  [[nodiscard]] bool write_all_of(std::uint32_t node, Medium to);
  [[nodiscard]] bool write(std::uint32_t node, CacheContent content, Medium to);

  Residency& contents_;
  TierLevels& levels_;
  TierNodes& nodes_;
  Admission& admission_;
  std::size_t groups_;
  bool writes_through_;
  std::uint64_t call_ = 1;  ///< numbers the calls of the cache
  std::vector<std::uint32_t> leaving_states_;
  std::vector<std::uint32_t> incomplete_;  ///< a group lost its state, which others do not have
  std::vector<Leaving> leaving_kv_;
  std::vector<std::uint32_t> fresh_;  ///< states that this call put on the device, to be written through
  std::vector<std::uint32_t> to_write_;
};

}  // namespace stateport::detail
