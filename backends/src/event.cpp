// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/event.hpp>

namespace stateport {

void order(const Stream& earlier, const Stream& later) {
  if (earlier == later) return;
  Event event;
  event.record(earlier);
  event.wait(later);
}

}  // namespace stateport
