// SPDX-License-Identifier: Apache-2.0
#include "bare_launch.hpp"
#include "vendor_calls.hpp"

namespace stateport::perf {
namespace {
__global__ void bare_kernel(const BareArguments) {}
}  // namespace

void launch_bare(const Stream& stream, const BareArguments& arguments) {
  bare_kernel<<<1, 256, 0, native(stream)>>>(arguments);
  check_launch();
}

}  // namespace stateport::perf
