// SPDX-License-Identifier: Apache-2.0
#include "hash/random_bits.hpp"

#include <stateport/core/model/error.hpp>

#include <sys/random.h>
#include <unistd.h>

namespace stateport::detail {

std::uint64_t random_bits() {
  std::uint64_t bits = 0;
  if (::getentropy(&bits, sizeof bits) != 0) throw BackendError("getentropy", "the system gives no random bits");
  return bits;
}

}  // namespace stateport::detail
