// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/internal/device_calls.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>

#include "copy_table.hpp"
#include "launch.hpp"
#include "store_overlap.hpp"
#include "sum_launch.hpp"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <vector>

namespace stateport {

/// The tables and rows of a SlotCopier, which StateIntegrity uses as well.
class SlotCopier::Impl {
 public:
  Impl(std::initializer_list<const StateStore*> stores, const StateStore& destination)
      : table(std::span(stores.begin(), stores.size()), destination, kernels::tile_bytes_max),
        dst_slots(destination.slots()),
        first_source((*stores.begin())->tensors().begin(), (*stores.begin())->tensors().end()),
        destination_tensors(destination.tensors().begin(), destination.tensors().end()) {
    for (const StateStore* source : stores)
      sources.push_back({.slots = source->slots(), .offset = kernels::shared_slots(*source, destination)});
    rows.reserve(kernels::prepared_rows);
    const Stream stream = Stream::default_stream();
    launcher.prepare(stream, table.view());
    stream.synchronize();
  }
  /// Streams of the engine may still read tables and staged plans.
  ~Impl() { detail::wait_for_device(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// Refuses plans that no launch can execute; `shift_max`: conv_shift may be at most this. Each source has its plan.
  void check(std::initializer_list<CopyPlan> plans, std::int64_t shift_max) {
    // One plan whose source numbers shared slots as the destination does is checked as it is.
    const bool direct = plans.size() == 1 && sources[0].offset.value_or(0) == 0;
    const Source* source = sources.data();
    for (const CopyPlan plan : plans) {
      validate(plan, source->slots, dst_slots, direct && source->offset);
      for (const SlotCopy& copy : plan)
        require(copy.conv_shift <= shift_max, "conv_shift", copy.conv_shift,
                shift_max == 0 ? "whole windows are copied here" : "must be below the conv window");
      ++source;
    }
    if (!direct) check_across(plans);
  }

  /// The same for several plans of one launch, and for stores that number their shared slots differently: no slot is
  /// written twice, and none is written and read.
  void check_across(std::initializer_list<CopyPlan> plans) {
    rows.clear();
    const Source* source = sources.data();
    for (const CopyPlan plan : plans) {
      for (SlotCopy copy : plan) {
        copy.src_slot = in_destination(copy.src_slot, *source);
        copy.recurrent_src_slot = in_destination(copy.recurrent_src_slot, *source);
        rows.push_back(copy);
      }
      ++source;
    }
    validate(rows, dst_slots, dst_slots, true);
  }

  /// Gathers the entries of `plan` that move bytes behind the rows that are there.
  void append_rows(CopyPlan plan, std::size_t source) {
    for (const SlotCopy& copy : plan) {
      const bool nothing = copy.src_slot < 0 && copy.recurrent_src_slot < 0;
      const bool in_place = copy.conv_shift == 0 && in_destination(copy.src_slot, sources[source]) == copy.dst_slot &&
                            in_destination(copy.recurrent_src_slot, sources[source]) == copy.dst_slot;
      if (copy.dst_slot >= 0 && !nothing && !in_place) rows.push_back(copy);
    }
  }

  [[nodiscard]] kernels::CopyTableView view(LayerRange layers) const {
    if (layers == all_layers) return table.view();
    require(layers.begin >= 0, "layers.begin", layers.begin, "must not be negative");
    require(layers.end >= layers.begin, "layers.end", layers.end, "must be at least begin");
    require(layers.end <= table.layers(), "layers.end", layers.end, "must be at most the number of layers");
    return table.view(layers.begin, layers.end);
  }

  /// The plan of the first source in one launch named `label`.
  void copy(const char* label, const Stream& stream, CopyPlan plan, std::int64_t shift_max, LayerRange layers) {
    const kernels::CopyTableView tiles = view(layers);
    check({plan}, shift_max);
    rows.clear();
    append_rows(plan, 0);
    copy_gathered(label, stream, tiles);
  }
  /// The gathered rows, all of the first source.
  void copy_gathered(const char* label, const Stream& stream, const kernels::CopyTableView& tiles) {
    if (copies_images(tiles)) return copy_images(stream);
    launcher.copy_rows(label, stream, tiles, rows, static_cast<std::uint32_t>(rows.size()));
  }

  /// SlotCopier::copy_slots, which also adds the bytes of rows to `sums`: check_of(row) answers the number of a check
  /// for a row that copies a whole state, or -1. It is asked only where copies can be summed.
  template <class CheckOf>
  void copy_with_sums(const Stream& stream, CopyPlan plan, const kernels::CheckSums& sums, const CheckOf& check_of) {
    const kernels::CopyTableView tiles = table.view();
    check({plan}, 0);
    rows.clear();
    append_rows(plan, 0);
    bool any = false;
    if (kernels::can_sum_copies(table) && !copies_images(tiles))
      for (SlotCopy& row : rows) {
        row.conv_shift = row.src_slot == row.recurrent_src_slot ? check_of(row) : -1;
        any = any || row.conv_shift >= 0;
      }
    if (any) return launcher.copy_rows_with_sums(stream, tiles, rows, sums);
    for (SlotCopy& row : rows) row.conv_shift = 0;
    copy_gathered(kernels::labels::copy_slots, stream, tiles);
  }

  /// Whether the gathered rows are whole states in images.
  [[nodiscard]] bool copies_images(const kernels::CopyTableView& tiles) const {
    return table.image().bytes != 0 && tiles.tile_count == table.view().tile_count &&
           std::ranges::all_of(
               rows, [](const SlotCopy& row) { return row.conv_shift == 0 && row.src_slot == row.recurrent_src_slot; });
  }
  void copy_images(const Stream& stream) const {
    const kernels::ImageRoute& image = table.image();
    for (const SlotCopy& row : rows)
      copy_bytes(stream, image.dst + row.dst_slot * image.dst_stride_bytes,
                 image.src + row.src_slot * image.src_stride_bytes, image.bytes);
  }

  struct Source {
    std::int32_t slots;
    std::optional<std::int64_t> offset;  ///< of shared_slots()
  };

  /// The slot of the destination that a slot of a source is, or -1.
  [[nodiscard]] std::int32_t in_destination(std::int32_t slot, const Source& source) const noexcept {
    if (slot < 0 || !source.offset) return -1;
    const std::int64_t same = slot + *source.offset;
    return same >= 0 && same < dst_slots ? static_cast<std::int32_t>(same) : -1;
  }

  kernels::CopyTable table;
  kernels::Launcher launcher;
  std::int32_t dst_slots;
  std::vector<Source> sources;
  std::vector<StateTensorView> first_source;
  std::vector<StateTensorView> destination_tensors;
  std::vector<SlotCopy> rows;  ///< reused by every call
};

}  // namespace stateport
