// SPDX-License-Identifier: Apache-2.0
#include <stateport/kernels/align_context.hpp>

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/event.hpp>
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/state_store.hpp>

#include <array>
#include <deque>
#include <vector>

#include "align_launch.hpp"
#include "launch.hpp"

namespace stateport {
namespace {

using kernels::AlignBatchView;
using kernels::AlignCounters;
using kernels::AlignGroupView;
using kernels::AlignPhase;

/// AlignPlanner knows what options are right.
AlignOptions validated(AlignOptions options) {
  require(options.mode == AlignMode::align, "mode", static_cast<int>(options.mode), "a context decides in align mode");
  static_cast<void>(AlignPlanner(options));
  return options;
}

void validate(const AlignBinding& binding, const AlignGroup& group, std::int32_t drafts) {
  require(binding.states != nullptr, "states", "nullptr", "must name the group's store");
  require(binding.block_table != nullptr, "block_table", "nullptr", "must point to the group's block table");
  require(binding.columns >= 1, "columns", binding.columns, "must be at least 1");
  require(binding.row_stride >= binding.columns, "row_stride", binding.row_stride, "must be at least columns");
  require(binding.states->slots() >= group.blocks, "slots", binding.states->slots(),
          "the store must have a slot for every block of the group");
  for (const StateTensorView& tensor : binding.states->tensors()) {
    if (tensor.spec.kind == StateKind::recurrent) continue;
    require(tensor.spec.window() >= group.conv_window, "conv_window", tensor.spec.window(),
            "a conv tensor has a shorter window than the group says");
    require(tensor.spec.window() > drafts, "conv_window", tensor.spec.window(),
            "a conv window must be longer than drafts: a bias of up to drafts tokens has to leave one");
  }
}

}  // namespace

class AlignContext::Impl {
 public:
  static constexpr std::size_t arrays = 4;  ///< column, accepted, src_column, src_offset
  static constexpr std::size_t stages = 2;

  explicit Impl(AlignOptions wanted)
      : options(validated(std::move(wanted))),
        groups(static_cast<std::int32_t>(options.groups.size())),
        requests(static_cast<std::size_t>(options.max_requests)),
        launcher(groups, 2 * options.max_requests),
        state(device, options.groups.size() * arrays * requests * sizeof(std::int32_t)),
        device_views(device, options.groups.size() * sizeof(AlignGroupView)),
        counters(device, sizeof(AlignCounters)),
        views(options.groups.size()),
        remembered(requests, forgotten_column),
        named_at(requests, 0) {
    const Stream stream = Stream::default_stream();
    for (std::size_t g = 0; g < views.size(); ++g) {
      views[g].block_size = options.groups[g].block_size_tokens;
      views[g].blocks = options.groups[g].blocks;
      views[g].column = array(g, 0);
      views[g].accepted = array(g, 1);
      views[g].src_column = array(g, 2);
      views[g].src_offset = array(g, 3);
    }
    const AlignCounters zero;
    copy_bytes(stream, counters.data(), &zero, sizeof zero);
    std::vector<std::int32_t> initial;
    for (std::size_t g = 0; g < views.size(); ++g)
      for (const std::int32_t value : {forgotten_column, neutral_accepted, no_column, 0})
        initial.insert(initial.end(), requests, value);
    copy_bytes(stream, state.data(), initial.data(), initial.size() * sizeof(std::int32_t));
    upload_views();
    for (Stage& stage : staged) {
      stage.pinned = Buffer(pinned, 4 * requests * sizeof(std::int32_t));
      stage.device = Buffer(device, 4 * requests * sizeof(std::int32_t));
    }
  }

  [[nodiscard]] std::int32_t* array(std::size_t group, std::size_t which) {
    return state.as<std::int32_t>() + (group * arrays + which) * requests;
  }

  void upload_views() {
    const Stream stream = Stream::default_stream();
    copy_bytes(stream, device_views.data(), views.data(), views.size() * sizeof(AlignGroupView));
    stream.synchronize();
  }

  void check_request(RequestId request) const {
    require(request.valid() && request.value() < options.max_requests, "request", request, "is not a request slot");
  }
  [[nodiscard]] const AlignGroupView& view(std::int32_t group) const {
    require(group >= 0 && group < groups, "group", group, "is out of range");
    return views[static_cast<std::size_t>(group)];
  }

  /// Two rows of one request would be decided from the same values, and copied at the same time.
  void check_named_once(std::span<const StagedRequest> batch) {
    ++stage_epoch;
    for (const StagedRequest& row : batch) {
      if (row.request < 0 || row.request >= options.max_requests) continue;  // stage_batch refuses it
      std::uint64_t& named = named_at[static_cast<std::size_t>(row.request)];
      require(named != stage_epoch, "request", row.request, "is named twice");
      named = stage_epoch;
    }
  }

  void step(const char* label, const Stream& stream, const AlignDeviceBatch& batch, AlignPhase phase) {
    require(is_bound, "bound", "false", "bind() the stores and block tables first");
    require(batch.rows >= 0 && batch.rows <= 2 * options.max_requests, "rows", batch.rows,
            "must be between 0 and twice max_requests");
    if (batch.rows == 0) return;
    require(batch.request != nullptr, "request", "nullptr", "must point to rows entries");
    require(batch.computed != nullptr, "computed", "nullptr", "must point to rows entries");
    require(batch.scheduled != nullptr || phase == AlignPhase::post_advanced, "scheduled", "nullptr",
            "must point to rows entries");
    require(batch.drafts != nullptr || phase != AlignPhase::post, "drafts", "nullptr", "must point to rows entries");
    const AlignBatchView view{.request = batch.request,
                              .computed = batch.computed,
                              .scheduled = batch.scheduled,
                              .drafts = batch.drafts,
                              .rows = batch.rows,
                              .max_requests = options.max_requests,
                              .max_drafts = options.drafts,
                              .phase = phase};
    launcher.step(label, stream, views, device_views.as<AlignGroupView>(), view, counters.as<AlignCounters>());
  }

  struct Stage {
    Buffer pinned;
    Buffer device;
    Event in_use;
  };

  AlignOptions options;
  std::int32_t groups;
  std::size_t requests;
  DeviceResource device;
  PinnedResource pinned;
  kernels::AlignLauncher launcher;
  Buffer state;         ///< [groups, arrays, max_requests]
  Buffer device_views;  ///< [groups]
  Buffer counters;
  std::vector<AlignGroupView> views;
  std::deque<kernels::CopyTable> tables;
  std::vector<std::int32_t> remembered;  ///< per request, what stage() asks: forgotten_column or anything else
  std::vector<std::uint64_t> named_at;   ///< per request, stage_epoch of the last batch that named it
  std::uint64_t stage_epoch = 0;
  std::array<Stage, stages> staged;
  std::size_t next_stage = 0;
  bool is_bound = false;
};

AlignContext::AlignContext(AlignOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
AlignContext::AlignContext(AlignContext&&) noexcept = default;
AlignContext& AlignContext::operator=(AlignContext&&) noexcept = default;
AlignContext::~AlignContext() = default;

void AlignContext::bind(std::span<const AlignBinding> groups) {
  require(groups.size() == impl_->views.size(), "groups", groups.size(), "must have one binding per group");
  for (std::size_t g = 0; g < groups.size(); ++g) validate(groups[g], impl_->options.groups[g], impl_->options.drafts);
  std::deque<kernels::CopyTable> tables;
  for (const AlignBinding& binding : groups)
    tables.emplace_back(std::array{binding.states}, *binding.states, kernels::tile_bytes_max);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    AlignGroupView& view = impl_->views[g];
    view.table = tables[g].view();
    view.block_table = groups[g].block_table;
    view.row_stride = groups[g].row_stride;
    view.columns = groups[g].columns;
  }
  impl_->upload_views();
  impl_->tables.swap(tables);
  impl_->is_bound = true;
}

void AlignContext::unbind() noexcept {
  impl_->is_bound = false;
}
bool AlignContext::bound() const noexcept {
  return impl_->is_bound;
}

void AlignContext::add_request(const Stream& stream, RequestId request, std::int64_t computed) {
  impl_->check_request(request);
  require(computed >= 0 && computed <= INT32_MAX, "computed", computed, "must be a 32-bit count");
  kernels::align_add_request(stream, impl_->device_views.as<AlignGroupView>(), impl_->groups, request, computed);
  impl_->remembered[request.index()] = no_column;
}

void AlignContext::forget(const Stream& stream, std::span<const RequestId> requests) {
  for (const RequestId request : requests) impl_->check_request(request);
  kernels::align_forget(stream, impl_->device_views.as<AlignGroupView>(), impl_->groups, requests);
  for (const RequestId request : requests) impl_->remembered[request.index()] = forgotten_column;
}

AlignDeviceBatch AlignContext::stage(const Stream& stream, std::span<const StagedRequest> batch) {
  const std::size_t requests = impl_->requests;
  require(batch.size() <= requests, "batch", batch.size(), "has more rows than max_requests");
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
  for (std::size_t row = 0; row < batch.size(); ++row) all[row] = batch[row].request;
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
  impl_->step("stateport::align_pre_step", stream, batch, AlignPhase::pre);
}
void AlignContext::post_step(const Stream& stream, const AlignDeviceBatch& batch) {
  impl_->step("stateport::align_post_step", stream, batch, AlignPhase::post);
}
void AlignContext::post_step_advanced(const Stream& stream, const AlignDeviceBatch& batch) {
  impl_->step("stateport::align_post_step", stream, batch, AlignPhase::post_advanced);
}

void AlignContext::scatter_accepted(const Stream& stream, const std::int32_t* request, const std::int32_t* sampled,
                                    std::int32_t rows) {
  require(rows >= 0, "rows", rows, "must not be negative");
  require(rows == 0 || (request != nullptr && sampled != nullptr), "request", "nullptr",
          "request and sampled must point to rows entries");
  kernels::align_scatter_accepted(stream, impl_->device_views.as<AlignGroupView>(), impl_->groups, request, sampled, 0,
                                  rows, impl_->options.max_requests);
}

void AlignContext::fill_accepted(const Stream& stream, const std::int32_t* request, std::int32_t sampled,
                                 std::int32_t rows) {
  require(rows >= 0, "rows", rows, "must not be negative");
  require(rows == 0 || request != nullptr, "request", "nullptr", "must point to rows entries");
  require(sampled >= 0 && sampled <= 1 + impl_->options.drafts, "sampled", sampled, "must be between 0 and 1 + drafts");
  kernels::align_scatter_accepted(stream, impl_->device_views.as<AlignGroupView>(), impl_->groups, request, nullptr,
                                  sampled, rows, impl_->options.max_requests);
}

void AlignContext::gather_decode(const Stream& stream, std::int32_t group, const AlignDeviceBatch& batch,
                                 const std::uint8_t* decode, std::int32_t padded_rows, std::int32_t* accepted,
                                 std::int32_t* draft_counts) {
  const AlignGroupView& view = impl_->view(group);
  require(batch.rows >= 0, "rows", batch.rows, "must not be negative");
  require(padded_rows >= batch.rows, "padded_rows", padded_rows, "must be at least the rows of the batch");
  require(batch.rows == 0 || (batch.request != nullptr && batch.drafts != nullptr && decode != nullptr), "batch",
          "nullptr", "request, drafts and decode must point to rows entries");
  require(padded_rows == 0 || (accepted != nullptr && draft_counts != nullptr), "accepted", "nullptr",
          "accepted and draft_counts must point to padded_rows entries");
  const AlignBatchView rows{.request = batch.request,
                            .drafts = batch.drafts,
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
  return &impl_->counters.as<AlignCounters>()->skipped_parts;
}

}  // namespace stateport
