// SPDX-License-Identifier: Apache-2.0
#include <stateport/kernels/slot_copier.hpp>

#include <stateport/core/model/error.hpp>
#include <stateport/kernels/state_store.hpp>

#include <vector>

#include "copy_table.hpp"
#include "launch.hpp"

namespace stateport {

class SlotCopier::Impl {
 public:
  Impl(std::initializer_list<const StateStore*> sources, const StateStore& destination)
      : table(std::span(sources.begin(), sources.size()), destination, kernels::tile_bytes_max),
        dst_slots(destination.slots()) {
    for (const StateStore* source : sources) {
      src_slots.push_back(source->slots());
      overlaps.push_back(source->tensors().front().base == destination.tensors().front().base);
    }
  }

  /// Appends the entries of `plan` that move bytes.
  void append_rows(CopyPlan plan, std::size_t source) {
    for (const SlotCopy& copy : plan) {
      const bool nothing = copy.src_slot < 0 && copy.recurrent_src_slot < 0;
      const bool in_place = overlaps[source] && copy.src_slot == copy.dst_slot && copy.conv_shift == 0 &&
                            copy.recurrent_src_slot == copy.dst_slot;
      if (copy.dst_slot >= 0 && !nothing && !in_place) rows.push_back(copy);
    }
  }

  /// `shift_max`: conv_shift may be at most this.
  void require_plan(CopyPlan plan, std::size_t source, std::int64_t shift_max) const {
    validate(plan, src_slots[source], dst_slots, overlaps[source]);
    for (const SlotCopy& copy : plan)
      require(copy.conv_shift <= shift_max, "conv_shift", copy.conv_shift,
              shift_max == 0 ? "whole windows are copied here" : "must be below the conv window");
  }

  void require_distinct_destinations(CopyPlan a, CopyPlan b) {
    rows.assign(a.begin(), a.end());
    rows.insert(rows.end(), b.begin(), b.end());
    for (SlotCopy& row : rows) row.src_slot = row.recurrent_src_slot = -1;
    validate(rows, 0, dst_slots, false);
  }

  kernels::CopyTable table;
  kernels::Launcher launcher;
  std::int32_t dst_slots;
  std::vector<std::int32_t> src_slots;
  std::vector<bool> overlaps;  ///< the source is the destination
  std::vector<SlotCopy> rows;  ///< reused by every call
};

SlotCopier::SlotCopier(const StateStore& source, const StateStore& destination)
    : impl_(std::make_unique<Impl>(std::initializer_list<const StateStore*>{&source}, destination)) {}
SlotCopier::SlotCopier(const StateStore& scratch, const StateStore& live, const StateStore& destination)
    : impl_(std::make_unique<Impl>(std::initializer_list<const StateStore*>{&scratch, &live}, destination)) {}
SlotCopier::SlotCopier(SlotCopier&&) noexcept = default;
SlotCopier& SlotCopier::operator=(SlotCopier&&) noexcept = default;
SlotCopier::~SlotCopier() = default;

void SlotCopier::copy_slots(const Stream& stream, CopyPlan plan) {
  impl_->require_plan(plan, 0, 0);
  impl_->rows.clear();
  impl_->append_rows(plan, 0);
  impl_->launcher.copy_rows("stateport::copy_slots", stream, impl_->table.view(), impl_->rows,
                            static_cast<std::uint32_t>(impl_->rows.size()));
}

void SlotCopier::copy_shifted(const Stream& stream, CopyPlan plan) {
  require(impl_->table.shiftable(), "source", "converted or transposed", "copy_shifted moves bits");
  impl_->require_plan(plan, 0, impl_->table.window_min() - 1);
  impl_->rows.clear();
  impl_->append_rows(plan, 0);
  impl_->launcher.copy_rows("stateport::copy_shifted", stream, impl_->table.view(), impl_->rows,
                            static_cast<std::uint32_t>(impl_->rows.size()));
}

void SlotCopier::copy_slots_on_device(const Stream& stream, const SlotCopy* plan, std::int32_t count) {
  require(count >= 0, "count", count, "must not be negative");
  require(plan != nullptr || count == 0, "plan", "nullptr", "must point to count copies");
  impl_->launcher.copy_rows_on_device(stream, impl_->table.view(), plan, static_cast<std::uint32_t>(count),
                                      {.src_slots = impl_->src_slots[0], .dst_slots = impl_->dst_slots});
}

void SlotCopier::commit_scratch(const Stream& stream, CopyPlan intermediates, CopyPlan ends) {
  require(impl_->src_slots.size() == 2, "sources", impl_->src_slots.size(), "commit_scratch needs scratch and live");
  impl_->require_plan(intermediates, 0, 0);
  impl_->require_plan(ends, 1, 0);
  impl_->require_distinct_destinations(intermediates, ends);
  impl_->rows.clear();
  impl_->append_rows(intermediates, 0);
  const auto from_scratch = static_cast<std::uint32_t>(impl_->rows.size());
  impl_->append_rows(ends, 1);
  impl_->launcher.copy_rows("stateport::commit_scratch", stream, impl_->table.view(), impl_->rows, from_scratch);
}

void SlotCopier::clear_slots(const Stream& stream, std::span<const SlotId> slots) {
  for (const SlotId slot : slots)
    require(slot.value() < impl_->dst_slots, "slots", slot, "is not a slot of the destination store");
  impl_->rows.clear();
  for (const SlotId slot : slots)
    if (slot.valid()) impl_->rows.push_back(SlotCopy::whole(-1, slot.value()));
  impl_->launcher.clear_rows(stream, impl_->table.view(), impl_->rows);
}

}  // namespace stateport
