// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/event.hpp>
#include <stateport/backends/internal/device_calls.hpp>
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/align_context.hpp>

#include "align_launch.hpp"

#include <array>
#include <deque>
#include <vector>

namespace stateport {

class AlignContext::Impl {
 public:
  static constexpr std::size_t arrays = 4;  ///< column, accepted, src_column, src_offset
  static constexpr std::size_t stages = 2;

  explicit Impl(AlignOptions wanted)
      : options(std::move(wanted)),
        groups(static_cast<std::int32_t>(options.groups.size())),
        requests(static_cast<std::size_t>(options.max_requests)),
        launcher(groups, 2 * options.max_requests),
        state(device, options.groups.size() * arrays * requests * sizeof(std::int32_t)),
        held(device, held_entries() * sizeof(kernels::HeldTokens)),
        device_views(device, options.groups.size() * sizeof(kernels::AlignGroupView)),
        counters(device, sizeof(kernels::AlignCounters)),
        views(options.groups.size()),
        remembered(requests, forgotten_column),
        named_at(requests, 0) {
    const Stream stream = Stream::default_stream();
    kernels::HeldTokens* next_held = held.as<kernels::HeldTokens>();
    for (std::size_t g = 0; g < views.size(); ++g) {
      views[g].block_size = options.groups[g].block_size_tokens;
      views[g].blocks = options.groups[g].blocks;
      views[g].column = array(g, 0);
      views[g].accepted = array(g, 1);
      views[g].src_column = array(g, 2);
      views[g].src_offset = array(g, 3);
      views[g].held_conv = next_held;
      views[g].held_recurrent = next_held + views[g].blocks;
      next_held += 2 * views[g].blocks;
    }
    const kernels::AlignCounters zero;
    copy_bytes(stream, counters.data(), &zero, sizeof zero);
    std::vector<std::int32_t> initial;
    for (std::size_t g = 0; g < views.size(); ++g)
      for (const std::int32_t value : {forgotten_column, neutral_accepted, no_column, 0})
        initial.insert(initial.end(), requests, value);
    const std::vector<kernels::HeldTokens> unknown(held_entries(), kernels::pack_held(0, unknown_tokens));
    copy_bytes(stream, held.data(), unknown.data(), unknown.size() * sizeof(kernels::HeldTokens));
    copy_bytes(stream, state.data(), initial.data(), initial.size() * sizeof(std::int32_t));
    upload_views();
    for (Stage& stage : staged) {
      stage.pinned = Buffer(pinned, 4 * requests * sizeof(std::int32_t));
      stage.device = Buffer(device, 4 * requests * sizeof(std::int32_t));
    }
    // The first launch of a source file makes Kokkos copy tables to the device and wait, which must not happen while a
    // graph is captured. No request is known yet: nothing is forgotten.
    const RequestIndex first{0};
    kernels::align_forget(stream, device_views.as<kernels::AlignGroupView>(), groups, {&first, 1});
    stream.synchronize();
  }
  /// Streams of the engine may still read and write this memory.
  ~Impl() { detail::wait_for_device(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  [[nodiscard]] std::int32_t* array(std::size_t group, std::size_t which) {
    return state.as<std::int32_t>() + (group * arrays + which) * requests;
  }

  /// Two for every block of every group.
  [[nodiscard]] std::size_t held_entries() const {
    std::size_t entries = 0;
    for (const AlignGroup& group : options.groups) entries += 2 * static_cast<std::size_t>(group.blocks);
    return entries;
  }

  void upload_views() {
    const Stream stream = Stream::default_stream();
    copy_bytes(stream, device_views.data(), views.data(), views.size() * sizeof(kernels::AlignGroupView));
    stream.synchronize();
  }

  void check_request(RequestIndex request) const {
    require(request.valid() && request.value() < options.max_requests, "request", request, "is not a request slot");
  }
  [[nodiscard]] const kernels::AlignGroupView& view(std::int32_t group) const {
    require(group >= 0 && group < groups, "group", group, "is out of range");
    return views[static_cast<std::size_t>(group)];
  }

  /// Two rows of one request would be decided from the same values, and copied at the same time.
  void check_named_once(std::span<const StagedRequest> batch) {
    ++stage_epoch;
    for (const StagedRequest& row : batch) {
      if (!row.request.valid() || row.request.value() >= options.max_requests) continue;  // stage_batch refuses it
      std::uint64_t& named = named_at[row.request.index()];
      require(named != stage_epoch, "request", row.request, "is named twice");
      named = stage_epoch;
    }
  }

  /// The arrays of a batch, of which a step reads some.
  [[nodiscard]] kernels::AlignBatchView view_of(const AlignDeviceBatch& batch, kernels::AlignPhase phase) const {
    const bool advanced = phase == kernels::AlignPhase::post_advanced;
    require(batch.rows >= 0 && batch.rows <= 2 * options.max_requests, "rows", batch.rows,
            "must be between 0 and twice max_requests");
    require(batch.rows == 0 || batch.request != nullptr, "request", "nullptr", "must point to rows entries");
    require(batch.rows == 0 || batch.computed != nullptr, "computed", "nullptr", "must point to rows entries");
    require(batch.scheduled == nullptr || batch.query_start_loc == nullptr, "query_start_loc", "given",
            "comes in place of scheduled");
    require(batch.rows == 0 || advanced || batch.scheduled != nullptr || batch.query_start_loc != nullptr, "scheduled",
            "nullptr", "must point to rows entries, unless query_start_loc does");
    require(batch.rows == 0 || phase != kernels::AlignPhase::post || batch.drafts != nullptr || options.drafts == 0,
            "drafts", "nullptr", "must point to rows entries");
    return {.request = batch.request,
            .counts = counts_of(batch),
            .rows = batch.rows,
            .max_requests = options.max_requests,
            .max_drafts = options.drafts,
            .phase = phase};
  }

  [[nodiscard]] static BatchCounts counts_of(const AlignDeviceBatch& batch) noexcept {
    return {.computed = batch.computed,
            .scheduled = batch.scheduled,
            .query_start_loc = batch.query_start_loc,
            .drafts = batch.drafts,
            .computed_by_request = batch.computed_by_request,
            .drafts_by_request = batch.drafts_by_request};
  }

  void step(const char* label, const Stream& stream, const AlignDeviceBatch& batch, kernels::AlignPhase phase) {
    const bool moves = options.mode == AlignMode::align;
    require_state(is_bound || !moves, "pre_step, post_step", "bind() the stores and block tables first");
    const kernels::AlignBatchView view = view_of(batch, phase);
    if (view.rows == 0) return;
    const auto* const on_device = device_views.as<kernels::AlignGroupView>();
    if (moves)
      launcher.step(label, stream, views, on_device, view, counters.as<kernels::AlignCounters>());
    else if (options.mode == AlignMode::all && phase == kernels::AlignPhase::post)
      kernels::align_remember_columns(stream, on_device, groups, view);
  }

  /// A step of no rows, for the same reason.
  void prepare_step() {
    const Stream stream = Stream::default_stream();
    launcher.step(kernels::labels::prepare, stream, views, device_views.as<kernels::AlignGroupView>(),
                  {.max_requests = options.max_requests, .max_drafts = options.drafts},
                  counters.as<kernels::AlignCounters>());
    stream.synchronize();
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
  Buffer held;          ///< per group: [blocks] of conv states, [blocks] of recurrent states
  Buffer device_views;  ///< [groups]
  Buffer counters;
  std::vector<kernels::AlignGroupView> views;
  std::deque<kernels::CopyTable> tables;
  std::vector<std::int32_t> remembered;  ///< per request, for stage(): forgotten_column or anything else
  std::vector<std::uint64_t> named_at;   ///< per request, stage_epoch of the last batch that named it
  std::uint64_t stage_epoch = 0;
  std::array<Stage, stages> staged;
  std::size_t next_stage = 0;
  bool is_bound = false;
};

}  // namespace stateport
