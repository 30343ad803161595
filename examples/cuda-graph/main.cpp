// SPDX-License-Identifier: Apache-2.0
// A copy of states inside of a CUDA graph. The plan lies in device memory and is read when the graph runs, so that one
// graph serves every step.
#include <stateport/backends/device.hpp>

#include <cstdio>

#ifndef HAS_CUDA_TOOLKIT

int main() {
  std::printf("this program needs the CUDA Toolkit and a stateport that was built for CUDA; this one is for %s\n",
              stateport::backend_info().name.data());
  return 77;
}

#else

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/runtime.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core/model/models.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <vector>

namespace {

void expect(bool ok, const char* problem) {
  if (ok) return;
  std::fprintf(stderr, "%s\n", problem);
  std::exit(1);
}
void check(cudaError_t error) {
  expect(error == cudaSuccess, cudaGetErrorString(error));
}

/// A slot is marked by the first byte of its first tensor.
std::byte mark_of(const stateport::StateStore& states, const stateport::Stream& stream, std::int32_t slot) {
  std::byte mark = {};
  stateport::copy_bytes(stream, &mark, states.tensors()[0].slot_data(stateport::SlotId{slot}), 1);
  stream.synchronize();
  return mark;
}

}  // namespace

int main() {
  if (stateport::backend_info().name != "CUDA" || stateport::devices().empty()) {
    std::printf("this program needs a GPU of NVIDIA, and a stateport that was built for CUDA\n");
    return 77;
  }
  const stateport::Runtime runtime;
  stateport::DeviceResource memory;
  // docs: capture
  cudaStream_t native = nullptr;
  check(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking));
  const stateport::Stream stream = stateport::Stream::from_native(native);  // before the capture: it allocates
  const stateport::StateStore states(memory, stateport::models::find("lfm2-1.2b"), {.slots = 8}, stream);
  stateport::SlotCopier copier(states);
  constexpr std::int32_t rows = 2;
  stateport::Buffer plan(memory, rows * sizeof(stateport::SlotCopy));

  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal));
  copier.copy_slots_on_device(stream, plan.as<stateport::SlotCopy>(), rows);
  check(cudaStreamEndCapture(native, &graph));
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph, 0));
  // docs end

  for (std::int32_t slot = 0; slot < 4; ++slot) {
    const auto* first = states.tensors()[0].slot_data(stateport::SlotId{slot});
    stateport::fill_bytes(stream, const_cast<std::byte*>(first), static_cast<std::byte>(slot + 1), 1);
  }
  // docs: replay
  for (const std::int32_t step : {0, 1}) {
    const std::array<stateport::SlotCopy, rows> copies = {stateport::SlotCopy::whole(2 * step, 4),
                                                          stateport::SlotCopy::whole(2 * step + 1, 5)};
    stateport::copy_bytes(stream, plan.data(), copies.data(), sizeof copies);
    check(cudaGraphLaunch(executable, native));
    expect(mark_of(states, stream, 4) == static_cast<std::byte>(2 * step + 1), "a replay copied another state");
  }
  // docs end
  check(cudaGraphExecDestroy(executable));
  check(cudaGraphDestroy(graph));
  std::printf("%s: one graph made two different copies\n", runtime.device().name.c_str());
  return 0;
}

#endif
