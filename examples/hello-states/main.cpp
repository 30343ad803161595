// SPDX-License-Identifier: Apache-2.0
// A pool of states for a model, and the copy of one state to another slot: one launch for all layers and tensors.
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/runtime.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core/model/models.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>

#include <cstddef>
#include <cstdio>
#include <vector>

int main() {
  // docs: a pool of states
  const stateport::Runtime runtime;
  const auto stream = stateport::Stream::default_stream();  // or Stream::from_native(cuda_stream)
  stateport::DeviceResource memory;
  const stateport::StateStore states{memory, stateport::models::find("qwen3-next-80b-a3b"), {.slots = 4}, stream};
  // docs end

  // The conv state of the first layer stands for a state that a forward pass has written.
  const stateport::StateTensorView& tensor = states.tensors().front();
  const std::vector<std::byte> written(tensor.spec.natural_bytes(), std::byte{42});
  stateport::copy_bytes(stream, tensor.slot_data(stateport::SlotId{0}), written.data(), written.size());

  // docs: a copy
  stateport::SlotCopier copier{states};
  const stateport::SlotCopy restore[] = {stateport::SlotCopy::whole(0, 3)};
  copier.copy_slots(stream, restore);  // one launch: all layers, all tensors
  // docs end

  std::vector<std::byte> read(written.size());
  stateport::copy_bytes(stream, read.data(), tensor.slot_data(stateport::SlotId{3}), read.size());
  stream.synchronize();
  std::printf("%s: a state of %zu bytes, in slot 3 it %s\n", runtime.device().name.c_str(), states.spec().slot_bytes(),
              read == written ? "is equal" : "DIFFERS");
  return read == written ? 0 : 1;
}
