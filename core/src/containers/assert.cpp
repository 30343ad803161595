// SPDX-License-Identifier: Apache-2.0
#include "containers/assert.hpp"

#include <cstdio>
#include <cstdlib>

namespace stateport::detail {

void assertion_failed(const char* condition, const char* file, int line) noexcept {
  std::fprintf(stderr, "%s:%d: internal contract broken: %s\n", file, line, condition);
  std::abort();
}

}  // namespace stateport::detail
