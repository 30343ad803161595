// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/c/model_layout.h>
#include <stateport/core/model/model_layout.hpp>

#include "handle_table.hpp"

#include <utility>

namespace stateport::c {

struct ModelLayoutObject final : Object {
  static constexpr Kind kind = Kind::model_layout;
  explicit ModelLayoutObject(ModelLayout&& made) : Object(kind), layout(std::move(made)) {}

  ModelLayout layout;
};

[[nodiscard]] inline ModelShard from_c(const stateport_shard& shard) noexcept {
  return {shard.layer_begin, shard.layer_end, shard.head_group, shard.head_groups};
}

}  // namespace stateport::c
