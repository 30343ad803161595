// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/state_spec.hpp>

#include "handle_table.hpp"

#include <utility>

namespace stateport::c {

struct SpecObject final : Object {
  static constexpr Kind kind = Kind::spec;
  explicit SpecObject(StateSpec&& made) : Object(kind), spec(std::move(made)) {}

  StateSpec spec;
};

}  // namespace stateport::c
