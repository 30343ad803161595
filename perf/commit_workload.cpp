// SPDX-License-Identifier: Apache-2.0
#include "commit_workload.hpp"

#include <stateport/backends/transfer.hpp>

#include <random>

namespace stateport::perf {
namespace {

StateSpec states_of(const CommitWorkload::Size& size, std::int64_t tokens, std::int64_t heads) {
  return StateSpec::uniform(size.layers, {.window = tokens, .dim = size.dim}, {.shape = {heads, 64, 64}});
}

Buffer upload(DeviceResource& resource, const std::vector<std::int32_t>& values) {
  const Stream stream = Stream::default_stream();
  Buffer buffer(resource, values.size() * sizeof(std::int32_t));
  copy_bytes(stream, buffer.data(), values.data(), values.size() * sizeof(std::int32_t));
  stream.synchronize();
  return buffer;
}

}  // namespace

std::vector<StepScratch> CommitWorkload::scratch_of(const StateStore& states, const Size& size) {
  std::vector<StepScratch> scratch;
  for (const StateTensorView& tensor : states.tensors()) {
    const bool conv = tensor.spec.kind == StateKind::conv;
    StepScratch one =
        conv ? StepScratch::strip(tensor.base, tensor.spec.type, size.window + size.steps - 1, size.dim, false)
             : StepScratch{.base = tensor.base,
                           .step_stride_bytes = static_cast<std::int64_t>(tensor.spec.natural_bytes()) / size.steps,
                           .type = tensor.spec.type};
    one.request_stride_bytes = tensor.slot_stride_bytes;
    scratch.push_back(one);
  }
  return scratch;
}

CommitWorkload::CommitWorkload(const Size& size)
    : size_(size),
      states_(resource_, states_of(size, size.window + size.steps - 1, size.heads * size.steps),
              {.slots = size.requests}),
      live_(resource_, states_of(size, size.window, size.heads), {.slots = size.requests}),
      scratch_(scratch_of(states_, size)),
      committer_(scratch_, live_, size.requests, size.steps),
      slot_(shuffled_slots(live_)) {
  fill_randomly(states_);
  std::mt19937_64 random(3);
  for (std::int32_t request = 0; request < size.requests; ++request)
    step_.push_back(request < size.idle ? -1 : static_cast<std::int32_t>(random() % static_cast<unsigned>(size.steps)));
  device_step_ = upload(resource_, step_);
  device_slot_ = upload(resource_, slot_);
}

StepTargets CommitWorkload::targets() const {
  return {.last_step = device_step_.as<std::int32_t>(),
          .live_slot = device_slot_.as<std::int32_t>(),
          .rows = size_.requests};
}

std::vector<Chunk> CommitWorkload::chunks() const {
  std::vector<Chunk> result;
  for (std::size_t request = static_cast<std::size_t>(size_.idle); request < step_.size(); ++request)
    for (std::size_t i = 0; i < scratch_.size(); ++i) {
      const StateTensorView& tensor = live_.tensors()[i];
      const std::byte* const src = scratch_[i].base +
                                   static_cast<std::int64_t>(request) * scratch_[i].request_stride_bytes +
                                   step_[request] * scratch_[i].step_stride_bytes;
      result.push_back({tensor.slot_data(SlotId{slot_[request]}), src, tensor.spec.natural_bytes()});
    }
  return result;
}

double CommitWorkload::moved_bytes() const {
  return 2.0 * (size_.requests - size_.idle) * static_cast<double>(live_.spec().slot_bytes());
}

}  // namespace stateport::perf
