// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/state_spec.hpp>

#include "arguments.hpp"
#include "handle_table.hpp"

#include <cstdint>
#include <utility>

namespace stateport::c {

/// C counts element types from 1, so that 0 can mean none.
[[nodiscard]] inline ElementType element_type(std::int32_t value) {
  return enumerator(value - 1, element_type_last, "type");
}

struct SpecObject final : Object {
  static constexpr Kind kind = Kind::spec;
  explicit SpecObject(StateSpec&& made) : Object(kind), spec(std::move(made)) {}

  StateSpec spec;
};

}  // namespace stateport::c
