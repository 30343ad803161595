// SPDX-License-Identifier: Apache-2.0
#include "states/device_align_states.hpp"

#include <stateport/backends/transfer.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "states/scaled_spec.hpp"

#include <algorithm>
#include <chrono>

namespace stateport::replay {
namespace {

using Clock = std::chrono::steady_clock;

std::size_t block_count(const DeviceAlignStatesOptions& options) {
  return static_cast<std::size_t>(options.blocks) + 1;
}

AlignOptions context_options(const DeviceAlignStatesOptions& options) {
  return {.drafts = options.drafts,
          .max_requests = options.requests,
          .groups = {{.block_size_tokens = static_cast<std::int32_t>(options.block_size_tokens),
                      .blocks = options.blocks + 1}}};
}

}  // namespace

DeviceAlignStates::DeviceAlignStates(MemoryResource& resource, const StateSpec& full,
                                     const DeviceAlignStatesOptions& options)
    : stream_(Stream::create()),
      states_(resource, scale_to_fit(full, options.materialize_bytes / block_count(options)),
              {.slots = static_cast<std::int32_t>(block_count(options))}, stream_),
      context_(context_options(options)),
      model_(resource, states_, options.history_tokens, options.drafts, options.requests, stream_),
      table_(resource, static_cast<std::size_t>(options.requests) * static_cast<std::size_t>(options.columns) *
                           sizeof(std::int32_t)),
      sampled_(resource, static_cast<std::size_t>(options.requests) * sizeof(std::int32_t)),
      remembered_(static_cast<std::size_t>(options.requests)),
      plant_wrong_block_(options.plant_wrong_block) {
  const AlignBinding binding{&states_, table_.as<std::int32_t>(), options.columns, options.columns};
  context_.bind({&binding, 1});
  counts_.state_bytes = spec().slot_bytes();
}

void DeviceAlignStates::add_request(RequestId request, std::int64_t computed) {
  context_.add_request(stream_, request, computed);
}

void DeviceAlignStates::forget(std::span<const RequestId> requests) {
  context_.forget(stream_, requests);
}

template <class Call>
void DeviceAlignStates::timed(double& seconds, const Call& call) {
  stream_.synchronize();
  const Clock::time_point begin = Clock::now();
  call();
  stream_.synchronize();
  seconds += std::chrono::duration<double>(Clock::now() - begin).count();
}

void DeviceAlignStates::step(const AlignStepView& step) {
  staged_table_.assign(step.block_table.begin(), step.block_table.end());
  staged_sampled_.assign(step.sampled.begin(), step.sampled.end());
  copy_bytes(stream_, table_.data(), staged_table_.data(), step.block_table.size_bytes());
  copy_bytes(stream_, sampled_.data(), staged_sampled_.data(), step.sampled.size_bytes());
  rows_.clear();
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    const StagedRequest& row = step.rows[i];
    rows_.push_back({.from = step.from[i],
                     .request = row.request,
                     .computed = row.computed,
                     .scheduled = row.scheduled,
                     .drafts = row.drafts.value_or(0)});
  }
  const AlignDeviceBatch batch = context_.stage(stream_, step.rows);
  timed(counts_.copy_seconds, [&] { context_.pre_step(stream_, batch); });
  timed(counts_.forward_seconds, [&] {
    model_.forward(stream_, rows_, step.window,
                   {.block_table = table_.as<std::int32_t>(),
                    .columns = step.columns,
                    .column_of_request = context_.columns(0),
                    .accepted_of_request = context_.accepted(0)});
  });
  timed(counts_.copy_seconds, [&] {
    context_.scatter_accepted(stream_, batch.request, sampled_.as<std::int32_t>(), batch.rows);
    context_.post_step(stream_, batch);
  });
}

bool DeviceAlignStates::remembers(std::span<const std::int32_t> columns, std::span<const std::int32_t> accepted) {
  const auto equals = [&](const std::int32_t* device, std::span<const std::int32_t> expected) {
    copy_bytes(stream_, remembered_.data(), device, remembered_.size() * sizeof(std::int32_t));
    stream_.synchronize();
    return std::ranges::equal(remembered_, expected);
  };
  return equals(context_.columns(0), columns) && equals(context_.accepted(0), accepted);
}

std::uint64_t DeviceAlignStates::check_restored(BlockId block, std::span<const Content> window) {
  if (plant_wrong_block_ && counts_.restores == 0) {
    const std::int32_t other = block.value() == 1 ? 2 : 1;
    const SlotCopy wrong = SlotCopy::whole(other, block.value());
    SlotCopier copier(states_);
    copier.copy_slots(stream_, {&wrong, 1});
    stream_.synchronize();
  }
  ++counts_.restores;
  return verify(block, window);
}

std::uint64_t DeviceAlignStates::check_published(BlockId block, std::span<const Content> window) {
  ++counts_.commits;
  return verify(block, window);
}

std::uint64_t DeviceAlignStates::verify(BlockId block, std::span<const Content> window) {
  std::uint64_t wrong_words = 0;
  timed(counts_.verify_seconds, [&] { wrong_words = model_.count_wrong_words(stream_, block.value(), window); });
  ++counts_.verified;
  counts_.mismatches += wrong_words != 0;
  return wrong_words;
}

std::size_t DeviceAlignStates::memory_bytes() const noexcept {
  return static_cast<std::size_t>(states_.slots()) * spec().slot_bytes();
}

}  // namespace stateport::replay
