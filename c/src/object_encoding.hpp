// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/c/state_tiers.h>
#include <stateport/tiers/object_set.hpp>

#include "spec_object.hpp"

#include <cstdint>
#include <optional>

namespace stateport::c {

[[nodiscard]] inline ObjectEncoding from_c(const stateport_object_encoding& encoding) {
  const auto read = [](std::int32_t type) -> std::optional<ElementType> {
    if (type == STATEPORT_DEFAULT_TYPE) return std::nullopt;
    return element_type(type);
  };
  return {.conv = read(encoding.conv), .recurrent = read(encoding.recurrent)};
}

}  // namespace stateport::c
