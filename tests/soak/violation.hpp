// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace stateport::soak {

/// The library broke one of its promises.
struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void must(bool holds, std::string_view what) {
  if (!holds) throw Violation(std::string(what));
}

}  // namespace stateport::soak
