// SPDX-License-Identifier: Apache-2.0
#include "draft_steps.hpp"

#include <stateport/backends/transfer.hpp>

#include "numbers.hpp"

#include <algorithm>

namespace stateport::engine {

DraftSteps::DraftSteps(const StateStore& store, std::int32_t rows, std::int32_t steps, bool trees, const Stream& stream)
    : stream_(stream),
      steps_(steps),
      trees_(trees),
      targets_(memory_, static_cast<std::size_t>(rows) * 4 * sizeof(std::int32_t)),
      committer_(make_committer(store, rows)) {}

StepCommitter DraftSteps::make_committer(const StateStore& store, std::int32_t rows) {
  std::vector<StepScratch> scratch;
  for (const StateTensorView& view : store.tensors()) {
    Tensor tensor{.spec = view.spec, .host = {}, .device = {}};
    const bool conv = view.spec.kind == StateKind::conv;
    const bool strips = conv && !trees_;
    tensor.step_elements = strips ? view.spec.dim() : view.spec.element_count();
    tensor.row_elements = (steps_ - 1) * tensor.step_elements + view.spec.element_count();
    tensor.host.resize(static_cast<std::size_t>(rows * tensor.row_elements) * element_bytes(view.spec.type));
    tensor.device = Buffer(memory_, tensor.host.size());
    const auto* base = static_cast<const std::byte*>(tensor.device.data());
    if (strips) {
      const std::int64_t tokens = view.spec.window() + steps_ - 1;
      scratch.push_back(StepScratch::strip(base, view.spec.type, tokens, view.spec.dim(), false));
    } else {
      const auto step_bytes = static_cast<std::int64_t>(view.spec.natural_bytes());
      scratch.push_back({.base = base,
                         .request_stride_bytes = steps_ * step_bytes,
                         .step_stride_bytes = step_bytes,
                         .token_stride = conv ? view.spec.dim() : 0,
                         .channel_stride = conv ? 1 : 0,
                         .type = view.spec.type});
    }
    tensors_.push_back(std::move(tensor));
  }
  return {scratch, store, rows, steps_};
}

void DraftSteps::put(std::int32_t row, std::int64_t step, const ModelState& state) {
  for (Tensor& tensor : tensors_) {
    const ModelState::Layer& layer = state.layers[static_cast<std::size_t>(tensor.spec.layer)];
    const bool conv = tensor.spec.kind == StateKind::conv;
    const std::vector<float>& values = conv ? layer.conv : layer.recurrent;
    const auto first = static_cast<std::size_t>(row * tensor.row_elements + step * tensor.step_elements);
    save_numbers(tensor.spec.type, values, tensor.host.data() + first * element_bytes(tensor.spec.type));
  }
}

void DraftSteps::commit(std::span<const Commit> commits) {
  if (commits.empty()) return;
  for (Tensor& tensor : tensors_) copy_bytes(stream_, tensor.device.data(), tensor.host.data(), tensor.host.size());
  // Rows are those of the pass; rows without drafts are skipped.
  const auto rows = static_cast<std::size_t>(std::ranges::max(commits, {}, &Commit::row).row) + 1;
  std::vector<std::int32_t> targets(4 * rows, -1);
  for (const Commit& commit : commits) {
    const auto row = static_cast<std::size_t>(commit.row);
    targets[row] = commit.live_step;
    targets[rows + row] = commit.live_slot.value();
    targets[2 * rows + row] = commit.kept_step;
    targets[3 * rows + row] = commit.kept_slot.value();
  }
  copy_bytes(stream_, targets_.data(), targets.data(), targets.size() * sizeof(std::int32_t));
  const auto* device = targets_.as<std::int32_t>();
  committer_.commit_step(stream_, {.last_step = device,
                                   .live_slot = device + rows,
                                   .track_step = device + 2 * rows,
                                   .track_slot = device + 3 * rows,
                                   .rows = static_cast<std::int32_t>(rows)});
  stream_.synchronize();  // the host arrays are used again
}

}  // namespace stateport::engine
