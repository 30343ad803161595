// SPDX-License-Identifier: Apache-2.0
#include <stateport/kernels/slot_copier.hpp>

#include <stateport/core/model/error.hpp>

#include "slot_copier_impl.hpp"

#include <memory>

namespace stateport {

SlotCopier::SlotCopier(const StateStore& store) : SlotCopier(store, store) {}
SlotCopier::SlotCopier(const StateStore& source, const StateStore& destination)
    : impl_(std::make_unique<Impl>(std::initializer_list<const StateStore*>{&source}, destination)) {}
SlotCopier::SlotCopier(const StateStore& scratch, const StateStore& live, const StateStore& destination)
    : impl_(std::make_unique<Impl>(std::initializer_list<const StateStore*>{&scratch, &live}, destination)) {}
SlotCopier::SlotCopier(SlotCopier&&) noexcept = default;
SlotCopier& SlotCopier::operator=(SlotCopier&&) noexcept = default;
SlotCopier::~SlotCopier() = default;

void SlotCopier::copy_slots(const Stream& stream, CopyPlan plan, LayerRange layers) {
  impl_->copy(kernels::labels::copy_slots, stream, plan, 0, layers);
}

void SlotCopier::copy_shifted(const Stream& stream, CopyPlan plan, LayerRange layers) {
  impl_->copy(kernels::labels::copy_shifted, stream, plan, impl_->table.window_min() - 1, layers);
}

void SlotCopier::copy_slots_on_device(const Stream& stream, const SlotCopy* plan, std::int32_t count,
                                      LayerRange layers) {
  require(count >= 0, "count", count, "must not be negative");
  require(plan != nullptr || count == 0, "plan", "nullptr", "must point to count copies");
  impl_->launcher.copy_rows_on_device(stream, impl_->view(layers), plan, static_cast<std::uint32_t>(count),
                                      {.src_slots = impl_->sources[0].slots, .dst_slots = impl_->dst_slots});
}

void SlotCopier::commit_scratch(const Stream& stream, CopyPlan intermediates, CopyPlan ends, LayerRange layers) {
  require(impl_->sources.size() == 2, "sources", impl_->sources.size(), "commit_scratch needs scratch and live");
  const kernels::CopyTableView tiles = impl_->view(layers);
  impl_->check({intermediates, ends}, 0);
  impl_->rows.clear();
  impl_->append_rows(intermediates, 0);
  const auto from_scratch = static_cast<std::uint32_t>(impl_->rows.size());
  impl_->append_rows(ends, 1);
  impl_->launcher.copy_rows(kernels::labels::commit_scratch, stream, tiles, impl_->rows, from_scratch);
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
