// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine.hpp"

#include <iosfwd>

namespace stateport::llamacpp {

struct ReplayOptions {
  EngineOptions engine;
  bool compare = false;  ///< also measure each prompt without the cache
};

/// Reads requests, JSON lines {"id", "tokens", "output"}, and writes a line for each: {"id", "prompt", "reused",
/// "computed", "first_token_ms", "image_ms", "output"}, with `compare` also "plain_ms". Throws std::runtime_error with
/// the number of a line that is no request of the model. Returns the exit code.
int replay(const ReplayOptions& options, std::istream& in, std::ostream& out);

}  // namespace stateport::llamacpp
