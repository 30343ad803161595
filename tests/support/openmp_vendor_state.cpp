// SPDX-License-Identifier: Apache-2.0
#include "vendor_state.hpp"

namespace stateport::test {

int pending_error() {
  return 0;
}
int device_count() {
  return 1;
}
int current_device() {
  return 0;
}
void make_current(int) {}

}  // namespace stateport::test
