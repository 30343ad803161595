// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/internal/device_calls.hpp>

namespace stateport::test {

/// Pretends something of the vendor's runtime while it lives, in an OpenMP build.
class Pretending {
 public:
  explicit Pretending(const detail::Pretence& what) : before_(detail::pretence()) { detail::pretence() = what; }
  ~Pretending() { detail::pretence() = before_; }
  Pretending(const Pretending&) = delete;
  Pretending& operator=(const Pretending&) = delete;

 private:
  detail::Pretence before_;
};

}  // namespace stateport::test
