// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include <cmath>
#include <string>

namespace stateport::replay {

/// Refuses a text that is no finite number. CLI11's ranges accept NaN, which no comparison finds outside of them.
inline CLI::Validator finite_number() {
  return {[](std::string& text) {
            double number = 0;
            const bool fine = CLI::detail::lexical_cast(text, number) && std::isfinite(number);
            return fine ? std::string() : "must be a finite number: " + text;
          },
          ""};
}

}  // namespace stateport::replay
