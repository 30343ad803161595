// SPDX-License-Identifier: Apache-2.0
#include <stateport/kernels/align_context.hpp>

#include <stateport/backends/internal/device_calls.hpp>
#include <stateport/kernels/state_store.hpp>

#include "align_context_impl.hpp"
#include "launch.hpp"

#include <array>
#include <deque>
#include <vector>

namespace stateport {
namespace {

/// AlignPlanner knows which options are right, but not how many writes a step may have.
AlignOptions validated(AlignOptions options) {
  // Every write of a step has a number of 32 bits.
  const std::int64_t writes = 2 * std::int64_t{options.max_requests} * (std::int64_t{options.drafts} + 1);
  require(options.max_requests <= INT32_MAX / 2, "max_requests", options.max_requests, "must be below 2^30");
  require(writes < UINT32_MAX, "drafts", options.drafts, "2 * max_requests * (1 + drafts) must be below 2^32 - 1");
  static_cast<void>(AlignPlanner(options));
  return options;
}

void validate(const AlignBinding& binding, const AlignGroup& group, std::int32_t drafts) {
  require(binding.states != nullptr, "states", "nullptr", "must name the group's store");
  require(binding.block_table != nullptr, "block_table", "nullptr", "must point to the group's block table");
  detail::require_reachable(binding.block_table, "block_table");
  require(binding.columns >= 1, "columns", binding.columns, "must be at least 1");
  require(binding.row_stride >= binding.columns, "row_stride", binding.row_stride, "must be at least columns");
  require(binding.states->slots() >= group.blocks, "slots", binding.states->slots(),
          "the store must have a slot for every block of the group");
  for (const StateTensorView& tensor : binding.states->tensors()) {
    require(!in_blocks(tensor.spec.type), "states", name(tensor.spec.type),
            "is a type of checkpoints: the states of running requests are not quantised");
    if (tensor.spec.kind == StateKind::recurrent) continue;
    require(tensor.spec.window() >= group.conv_window, "conv_window", tensor.spec.window(),
            "a conv tensor has a shorter window than the group says");
    require(tensor.spec.window() > drafts, "conv_window", tensor.spec.window(),
            "a conv window must be longer than drafts: a bias of up to drafts tokens has to leave one");
  }
}

}  // namespace

AlignContext::AlignContext(AlignOptions options) : impl_(std::make_unique<Impl>(validated(std::move(options)))) {}
AlignContext::AlignContext(AlignContext&&) noexcept = default;
AlignContext& AlignContext::operator=(AlignContext&&) noexcept = default;
AlignContext::~AlignContext() = default;

void AlignContext::bind(std::span<const AlignBinding> groups) {
  require(groups.size() == impl_->views.size(), "groups", groups.size(), "must have one binding per group");
  for (std::size_t g = 0; g < groups.size(); ++g) validate(groups[g], impl_->options.groups[g], impl_->options.drafts);
  std::deque<kernels::CopyTable> tables;
  for (const AlignBinding& binding : groups)
    tables.emplace_back(std::array{binding.states}, *binding.states, kernels::tile_bytes_max);
  detail::wait_for_device();  // steps on streams of the engine may still read the views and tables of before
  for (std::size_t g = 0; g < groups.size(); ++g) {
    kernels::AlignGroupView& view = impl_->views[g];
    view.table = tables[g].view();
    view.block_table = groups[g].block_table;
    view.row_stride = groups[g].row_stride;
    view.columns = groups[g].columns;
  }
  impl_->upload_views();
  impl_->tables.swap(tables);
  impl_->prepare_step();
  impl_->is_bound = true;
}

void AlignContext::unbind() noexcept {
  impl_->is_bound = false;
}
bool AlignContext::bound() const noexcept {
  return impl_->is_bound;
}

void AlignContext::add_request(const Stream& stream, RequestIndex request, std::int64_t computed) {
  impl_->check_request(request);
  require(computed >= 0 && computed <= INT32_MAX, "computed", computed, "must be a 32-bit count");
  kernels::align_add_request(stream, impl_->device_views.as<kernels::AlignGroupView>(), impl_->groups, request,
                             computed);
  impl_->remembered[request.index()] = no_column;
}

void AlignContext::forget(const Stream& stream, std::span<const RequestIndex> requests) {
  for (const RequestIndex request : requests) impl_->check_request(request);
  kernels::align_forget(stream, impl_->device_views.as<kernels::AlignGroupView>(), impl_->groups, requests);
  for (const RequestIndex request : requests) impl_->remembered[request.index()] = forgotten_column;
}

AlignDeviceBatch AlignContext::stage(const Stream& stream, std::span<const StagedRequest> batch) {
  const std::size_t requests = impl_->requests;
  require(batch.size() <= requests, "batch", batch.size(), "has more rows than max_requests");
  require(!detail::is_capturing(stream), "batch", batch.size(),
          "cannot be staged into a graph: a replay would read the host's copy as it is by then");
  for (const StagedRequest& row : batch) {
    const std::int32_t drafts = row.drafts.value_or(0);
    require(drafts <= impl_->options.drafts, "drafts", drafts, "must be at most the context's drafts");
    require(drafts <= row.scheduled, "drafts", drafts, "must be among the scheduled");
  }
  impl_->check_named_once(batch);
  Impl::Stage& stage = impl_->staged[impl_->next_stage];
  stage.in_use.synchronize();
  const std::span<std::int32_t> all(stage.pinned.as<std::int32_t>(), 4 * requests);
  stage_batch(batch, impl_->remembered,
              {.computed = all.subspan(requests, requests),
               .scheduled = all.subspan(2 * requests, requests),
               .drafts = all.subspan(3 * requests, requests)});
  for (std::size_t row = 0; row < batch.size(); ++row) all[row] = batch[row].request.value();
  copy_bytes(stream, stage.device.data(), stage.pinned.data(), all.size_bytes());
  stage.in_use.record(stream);
  impl_->next_stage = (impl_->next_stage + 1) % Impl::stages;
  const auto* const arrays = stage.device.as<std::int32_t>();
  return {.request = arrays,
          .computed = arrays + requests,
          .scheduled = arrays + 2 * requests,
          .drafts = arrays + 3 * requests,
          .rows = static_cast<std::int32_t>(batch.size())};
}

void AlignContext::pre_step(const Stream& stream, const AlignDeviceBatch& batch) {
  impl_->step(kernels::labels::align_pre_step, stream, batch, kernels::AlignPhase::pre);
}
void AlignContext::post_step(const Stream& stream, const AlignDeviceBatch& batch) {
  impl_->step(kernels::labels::align_post_step, stream, batch, kernels::AlignPhase::post);
}
void AlignContext::post_step_advanced(const Stream& stream, const AlignDeviceBatch& batch) {
  impl_->step(kernels::labels::align_post_step, stream, batch, kernels::AlignPhase::post_advanced);
}

void AlignContext::scatter_accepted(const Stream& stream, const std::int32_t* request, const std::int32_t* sampled,
                                    std::int32_t rows) {
  require(rows >= 0, "rows", rows, "must not be negative");
  require(rows == 0 || (request != nullptr && sampled != nullptr), "request", "nullptr",
          "request and sampled must point to rows entries");
  kernels::align_scatter_accepted(stream, impl_->device_views.as<kernels::AlignGroupView>(), impl_->groups, request,
                                  sampled, 0, rows, impl_->options.max_requests);
}

void AlignContext::fill_accepted(const Stream& stream, const std::int32_t* request, std::int32_t sampled,
                                 std::int32_t rows) {
  require(rows >= 0, "rows", rows, "must not be negative");
  require(rows == 0 || request != nullptr, "request", "nullptr", "must point to rows entries");
  require(sampled >= 0 && sampled <= 1 + impl_->options.drafts, "sampled", sampled, "must be between 0 and 1 + drafts");
  kernels::align_scatter_accepted(stream, impl_->device_views.as<kernels::AlignGroupView>(), impl_->groups, request,
                                  nullptr, sampled, rows, impl_->options.max_requests);
}

void AlignContext::gather_decode(const Stream& stream, std::int32_t group, const AlignDeviceBatch& batch,
                                 const std::uint8_t* decode, std::int32_t padded_rows, std::int32_t* accepted,
                                 std::int32_t* draft_counts) {
  const kernels::AlignGroupView& view = impl_->view(group);
  require(batch.rows >= 0, "rows", batch.rows, "must not be negative");
  require(padded_rows >= batch.rows, "padded_rows", padded_rows, "must be at least the rows of the batch");
  const bool has_drafts = batch.drafts != nullptr || impl_->options.drafts == 0;
  require(batch.rows == 0 || (batch.request != nullptr && has_drafts && decode != nullptr), "batch", "nullptr",
          "request, drafts and decode must point to rows entries");
  require(padded_rows == 0 || (accepted != nullptr && draft_counts != nullptr), "accepted", "nullptr",
          "accepted and draft_counts must point to padded_rows entries");
  const kernels::AlignBatchView rows{.request = batch.request,
                                     .counts = Impl::counts_of(batch),
                                     .rows = batch.rows,
                                     .max_requests = impl_->options.max_requests};
  kernels::align_gather_decode(stream, rows, view.accepted, decode, padded_rows, accepted, draft_counts);
}

const std::int32_t* AlignContext::columns(std::int32_t group) const {
  return impl_->view(group).column;
}
const std::int32_t* AlignContext::accepted(std::int32_t group) const {
  return impl_->view(group).accepted;
}
const std::int32_t* AlignContext::src_columns(std::int32_t group) const {
  return impl_->view(group).src_column;
}
const std::int32_t* AlignContext::src_offsets(std::int32_t group) const {
  return impl_->view(group).src_offset;
}
const std::int64_t* AlignContext::skipped_parts() const noexcept {
  return &impl_->counters.as<kernels::AlignCounters>()->skipped_parts;
}

}  // namespace stateport
