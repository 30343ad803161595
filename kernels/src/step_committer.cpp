// SPDX-License-Identifier: Apache-2.0
#include <stateport/kernels/step_committer.hpp>

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/internal/device_calls.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/state_store.hpp>

#include "copy_table.hpp"
#include "launch.hpp"
#include "step_launch.hpp"

#include <vector>

namespace stateport {
namespace {

void validate(const StepScratch& scratch, const StateTensorSpec& tensor) {
  require(scratch.base != nullptr, "base", "nullptr", "must point to the scratch of request 0, step 0");
  detail::require_reachable(scratch.base, "base");
  for (const ElementType type : {scratch.type, tensor.type})
    require(!in_blocks(type), "type", name(type),
            "is a type of checkpoints: the states of running requests are not quantised");
  require(convertible(scratch.type, tensor.type), "type", name(scratch.type),
          "cannot be converted to the destination's element type");
  const auto bytes = static_cast<std::int64_t>(element_bytes(scratch.type));
  for (const std::int64_t stride : {scratch.request_stride_bytes, scratch.step_stride_bytes})
    require(stride >= 0 && stride % bytes == 0, "stride", stride, "must be a whole number of elements");
  if (tensor.kind == StateKind::recurrent) return;
  require(scratch.token_stride >= 1, "token_stride", scratch.token_stride, "must be at least 1");
  require(scratch.channel_stride >= 1, "channel_stride", scratch.channel_stride, "must be at least 1");
}

std::int32_t at_least_one(std::int32_t count, const char* argument) {
  require(count >= 1, argument, count, "must be at least 1");
  return count;
}

/// The states of all requests after their first step, as the slots of a source.
std::vector<StateTensorView> first_steps(std::span<const StepScratch> scratch, const StateStore& destination) {
  require(scratch.size() == destination.tensors().size(), "scratch", scratch.size(),
          "must have one entry per tensor of the destination");
  std::vector<StateTensorView> tensors;
  for (std::size_t i = 0; i < scratch.size(); ++i) {
    StateTensorSpec spec = destination.tensors()[i].spec;
    validate(scratch[i], spec);
    spec.type = scratch[i].type;
    if (spec.kind == StateKind::conv)
      spec.strides = {.token = scratch[i].token_stride, .channel = scratch[i].channel_stride};
    // A source is read alone: that a view can be written through matters not.
    tensors.push_back({.spec = spec,
                       .base = const_cast<std::byte*>(scratch[i].base),
                       .slot_stride_bytes = scratch[i].request_stride_bytes});
  }
  return tensors;
}

}  // namespace

class StepCommitter::Impl {
 public:
  Impl(std::span<const StepScratch> scratch, const StateStore& destination, std::int32_t request_count,
       std::int32_t step_count)
      : requests(at_least_one(request_count, "requests")),
        table(first_steps(scratch, destination), destination, kernels::tile_bytes_max),
        launcher(request_count) {
    std::vector<std::int64_t> strides;
    for (const StepScratch& tensor : scratch) strides.push_back(tensor.step_stride_bytes);
    const Stream stream = Stream::default_stream();
    step_strides = Buffer(resource, strides.size() * sizeof strides[0]);
    copy_bytes(stream, step_strides.data(), strides.data(), strides.size() * sizeof strides[0]);
    states = {.table = table.view(),
              .step_stride_bytes = step_strides.as<std::int64_t>(),
              .slots = destination.slots(),
              .steps = at_least_one(step_count, "steps")};
    // The first launch of a source file makes Kokkos copy tables to the device and wait, which must not happen while a
    // graph is captured. No row commits nothing.
    launcher.commit(kernels::labels::prepare, stream, states, {});
    stream.synchronize();
  }
  /// Streams of the engine may still read the tables.
  ~Impl() { detail::wait_for_device(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::int32_t requests;
  kernels::CopyTable table;
  kernels::StepLauncher launcher;
  DeviceResource resource;
  Buffer step_strides;
  kernels::StepTable states;
};

StepCommitter::StepCommitter(std::span<const StepScratch> scratch, const StateStore& destination, std::int32_t requests,
                             std::int32_t steps)
    : impl_(std::make_unique<Impl>(scratch, destination, requests, steps)) {}
StepCommitter::StepCommitter(StepCommitter&&) noexcept = default;
StepCommitter& StepCommitter::operator=(StepCommitter&&) noexcept = default;
StepCommitter::~StepCommitter() = default;

void StepCommitter::commit_step(const Stream& stream, const StepTargets& targets) {
  require(targets.rows >= 0 && targets.rows <= impl_->requests, "rows", targets.rows,
          "must be between 0 and the scratch's requests");
  if (targets.rows == 0) return;
  require(targets.last_step != nullptr && targets.live_slot != nullptr, "last_step", "nullptr",
          "last_step and live_slot must point to rows entries");
  require((targets.track_step == nullptr) == (targets.track_slot == nullptr), "track_step", "nullptr",
          "track_step and track_slot come together");
  impl_->launcher.commit(kernels::labels::commit_step, stream, impl_->states,
                         {.last_step = targets.last_step,
                          .live_slot = targets.live_slot,
                          .track_step = targets.track_step,
                          .track_slot = targets.track_slot,
                          .rows = static_cast<std::uint32_t>(targets.rows)});
}

}  // namespace stateport
