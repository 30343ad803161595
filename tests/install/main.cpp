// SPDX-License-Identifier: Apache-2.0
// The first steps of an engine: make a pool of states for a model and copy one slot to another. Compiled outside of the
// build tree, by a plain C++ compiler, against the installed package.
#if __has_include(<Kokkos_Core.hpp>)
#error "the headers of Kokkos must not be needed, nor be found by users of stateport"
#endif

#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/runtime.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core/model/models.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>
#include <stateport/parts/checkpoint_budget.hpp>

#include <cstddef>
#include <cstdio>
#include <vector>

int main() {
  const stateport::Runtime runtime;
  const auto stream = stateport::Stream::default_stream();  // or Stream::from_native(cuda_stream)
  stateport::DeviceResource memory;
  const stateport::StateStore states{memory, stateport::models::find("qwen3-next-80b-a3b"), {.slots = 4}, stream};

  const auto& tensor = states.tensors().front();
  const std::vector<std::byte> written(tensor.spec.natural_bytes(), std::byte{42});
  stateport::copy_bytes(stream, tensor.slot_data(stateport::SlotId{0}), written.data(), written.size());
  stateport::SlotCopier copier{states};
  const stateport::SlotCopy restore[] = {stateport::SlotCopy::whole(0, 3)};
  copier.copy_slots(stream, restore);  // one launch: all layers, all tensors

  std::vector<std::byte> read(written.size());
  stateport::copy_bytes(stream, read.data(), tensor.slot_data(stateport::SlotId{3}), read.size());
  stream.synchronize();
  const std::size_t slot_bytes = states.spec().slot_bytes();
  const auto fitting = static_cast<long long>(stateport::slots_for_budget(std::size_t{1} << 30, slot_bytes, 0));
  std::printf("%s: one state is %zu bytes, %lld of them take a GiB, the copy %s\n", runtime.device().name.c_str(),
              slot_bytes, fitting, read == written ? "is equal" : "DIFFERS");
  return read == written ? 0 : 1;
}
