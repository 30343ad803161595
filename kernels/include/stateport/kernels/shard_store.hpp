// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/model_layout.hpp>
#include <stateport/kernels/state_store.hpp>

namespace stateport {

/// A store, and the part of a model's state that a slot of it holds: the tensors of ModelLayout::spec_of(shard) in
/// their order, with any element types, strides and paddings.
struct ShardStore {
  const StateStore* store = nullptr;
  ModelShard shard;
};

}  // namespace stateport
