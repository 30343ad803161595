// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/model_layout.hpp>
#include <stateport/tiers/object_set.hpp>
#include <stateport/tiers/remote_store.hpp>

#include <cstddef>
#include <optional>
#include <vector>

namespace stateport {

/// How tensor-parallel ranks and pipeline stages share a state or a KV block, and which part is in a store of this
/// rank.
struct SharedLayout {
  ModelLayout layout;
  ModelShard shard = {};  ///< all zero: the whole
};

/// A store that machines share, as a tier. Its images are objects that do not depend on the topology of who wrote them.
struct RemoteOptions {
  /// Must outlive the tiers, and is used by no one else while they exist.
  RemoteStore* store = nullptr;
  std::vector<SharedLayout> states = {};  ///< [groups]
  std::optional<SharedLayout> kv = {};    ///< of a block; nothing without KV
  /// Equal for all that share the store, as is StateTiersOptions::model.
  ObjectGrid grid = {};
  /// Of states: the first is written, all are read. The default: element types of `states`. KV is as `kv` says.
  std::vector<ObjectEncoding> encodings = {ObjectEncoding{}};
  /// Host memory for objects on their way, in whole sets; it is registered with the store. Loads wait for it; stores
  /// and copies are refused without it.
  std::size_t staging_bytes = std::size_t{256} << 20;
};

}  // namespace stateport
