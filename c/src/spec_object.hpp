// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/c/spec.h>
#include <stateport/core/model/models.hpp>
#include <stateport/core/model/state_spec.hpp>

#include "arguments.hpp"
#include "handle_table.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace stateport::c {

/// C counts element types from 1, so that 0 can mean none.
[[nodiscard]] inline ElementType element_type(std::int32_t value) {
  require(value >= 1 && value <= static_cast<std::int32_t>(element_type_last) + 1, "type", value, "is no enumerator");
  return static_cast<ElementType>(value - 1);
}

[[nodiscard]] inline models::SpecOptions read_spec_options(const stateport_spec_options* options) {
  const auto given = read_optional_struct(options, "options");
  models::SpecOptions wanted{.drafts = given.drafts,
                             .conv_layout = enumerator(given.conv_layout, ConvLayout::ds, "conv_layout")};
  if (given.recurrent_type != STATEPORT_DEFAULT_TYPE) wanted.recurrent_type = element_type(given.recurrent_type);
  return wanted;
}

[[nodiscard]] inline const models::ModelInfo& read_model(const char* model) {
  require(model != nullptr, "model", "null", "must be the name of a model");
  return models::info(model);
}

[[nodiscard]] inline models::ModelInfo read_config(const char* config, std::size_t config_bytes) {
  const std::span<const char> text = array(config, config_bytes, "config");
  return models::from_config({text.data(), text.size()});
}

struct SpecObject final : Object {
  static constexpr Kind kind = Kind::spec;
  explicit SpecObject(StateSpec&& made) : Object(kind), spec(std::move(made)) {}

  StateSpec spec;
};

}  // namespace stateport::c
