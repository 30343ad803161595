// SPDX-License-Identifier: Apache-2.0
#include "serve/tenant_marks.hpp"

#include <stateport/core/align/align_rules.hpp>

#include "serve/request_options.hpp"
#include "serve/tenant_name.hpp"

#include <algorithm>
#include <utility>

namespace stateport::detail {
namespace {

constexpr PrefixHash unknown;

/// True if the place was not the tenant's. It is now.
bool take(PrefixHash& writer, const PrefixHash& tenant) noexcept {
  if (writer == tenant) return false;
  writer = tenant;
  return true;
}

}  // namespace

TenantMarks::TenantMarks(const RequestCacheOptions& options, const StateTable& states)
    : options_(options),
      states_(states),
      in_columns_(in_columns(options)),
      separate_(slot_layout(options).separate_checkpoints),
      tenant_(index_rows(options)),
      kv_(static_cast<std::size_t>(kv_blocks(options))),
      scratch_(static_cast<std::size_t>(scratch_slots(options))),
      draft_rows_(in_columns_ || options.drafts == 0 ? 0 : tenant_.size()) {
  for (std::size_t g = 0; g < group_count(options); ++g)
    slots_.emplace_back(static_cast<std::size_t>(state_slots(options, g)));
}

void TenantMarks::reserve(Pass& pass) const {
  pass.scrub_kv.reserve(kv_.size());
  pass.scrub_scratch.reserve(scratch_.size());
  pass.scrub_draft_rows.reserve(draft_rows_.size());
  for (std::size_t g = 0; g < slots_.size(); ++g) pass.clear[g].reserve(slots_[g].size() + tenant_.size());
}

void TenantMarks::begin(RequestId request, const std::optional<NameKey>& salt) {
  tenant_[request.index()] = tenant_name(sha256_, salt);
}

std::size_t TenantMarks::blocks_of(const KvRow& kv) const noexcept {
  const auto tokens = kv.ids.size() * static_cast<std::size_t>(kv.tokens_per_id);
  return tokens / static_cast<std::size_t>(options_.block_size_tokens);
}

std::size_t TenantMarks::block_of(const KvRow& kv, std::size_t block) const noexcept {
  const std::int64_t size = options_.block_size_tokens;
  return static_cast<std::size_t>(kv.at(static_cast<std::int64_t>(block) * size) / size);
}

void TenantMarks::place(Pass& pass, std::size_t index) {
  const RowPlan& row = pass.rows[index];
  const Tenant& tenant = tenant_[row.request.index()];
  const std::size_t end = blocks_of(row.kv);
  for (auto i = static_cast<std::size_t>(row.start / options_.block_size_tokens); i < end; ++i) {
    const std::size_t block = block_of(row.kv, i);
    if (take(kv_[block], tenant)) pass.scrub_kv.push_back(static_cast<std::int32_t>(block));
  }
  if (in_columns_)
    place_columns(pass, row, tenant);
  else
    place_slots(pass, index, tenant);
}

/// Columns below the running one are the request's own, or a hit.
void TenantMarks::place_columns(Pass& pass, const RowPlan& row, const Tenant& tenant) {
  const ColumnLayout& columns = column_layout(options_);
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    const std::span<const std::int32_t> slots = row.states[g].slots;
    const std::int64_t size = columns.groups[g].block_size_tokens;
    const std::int64_t running = columns.mode == AlignMode::none ? 0 : std::max<std::int64_t>(row.start - 1, 0);
    for (auto column = static_cast<std::size_t>(running / size); column < slots.size(); ++column) {
      const std::int32_t slot = slots[column];
      if (slot != null_block && take(slots_[g][static_cast<std::size_t>(slot)], tenant))
        pass.clear[g].push_back(SlotId{slot});
    }
  }
}

/// The live slot is cleared or overwritten as a whole when a request begins.
void TenantMarks::place_slots(Pass& pass, std::size_t index, const Tenant& tenant) {
  const RowPlan& row = pass.rows[index];
  slots_[0][row.states[0].target().index()] = tenant;
  const auto [first, end] = pass.save_ranges[index];
  for (std::size_t i = first; i < end; ++i) {
    const StateSave& save = pass.saves[i];
    if (save.in_scratch && take(scratch_[save.slot.index()], tenant)) pass.scrub_scratch.push_back(save.slot);
    if (!save.in_scratch && take(slots_[0][save.slot.index()], tenant)) pass.clear[0].push_back(save.slot);
  }
}

void TenantMarks::place_drafts(Pass& pass) {
  for (std::size_t i = 0; i < pass.rows.size() && !draft_rows_.empty(); ++i)
    if (pass.runs(i) && pass.rows[i].drafts > 0 && take(draft_rows_[i], tenant_[pass.rows[i].request.index()]))
      pass.scrub_draft_rows.push_back(static_cast<std::int32_t>(i));
}

void TenantMarks::forget(const Pass& pass) noexcept {
  for (const std::int32_t block : pass.scrub_kv) kv_[static_cast<std::size_t>(block)] = unknown;
  for (const SlotId slot : pass.scrub_scratch) scratch_[slot.index()] = unknown;
  for (const std::int32_t row : pass.scrub_draft_rows) draft_rows_[static_cast<std::size_t>(row)] = unknown;
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    for (const SlotId slot : pass.clear[g]) slots_[g][slot.index()] = unknown;
    if (in_columns_) continue;  // the target of a column's copy is the request's, or to be cleared
    for (const SlotCopy& copy : pass.copies[g]) slots_[g][static_cast<std::size_t>(copy.dst_slot)] = unknown;
  }
}

void TenantMarks::copied(std::size_t group, const GroupCommit& commit) noexcept {
  if (separate_) return;
  Writers& slots = slots_[group];
  for (const SlotCopy& copy : commit.from_scratch)
    slots[static_cast<std::size_t>(copy.dst_slot)] = scratch_[static_cast<std::size_t>(copy.src_slot)];
  for (const StepCommit& step : commit.steps)
    if (step.kept_step >= 0) slots[step.kept_slot.index()] = slots[step.live_slot.index()];
  if (in_columns_) return;  // these copies stay within a request, whose tenant wrote both ends
  for (const SlotCopy& copy : commit.copies)
    slots[static_cast<std::size_t>(copy.dst_slot)] = slots[static_cast<std::size_t>(copy.src_slot)];
}

void TenantMarks::loading(std::span<const std::int32_t> kv_blocks, std::span<const SlotId> slots) noexcept {
  for (const std::int32_t block : kv_blocks) kv_[static_cast<std::size_t>(block)] = unknown;
  if (separate_) return;
  for (std::size_t g = 0; g < slots.size(); ++g) slots_[g][slots[g].index()] = unknown;
}

void TenantMarks::loaded(RequestId request, const KvRow& kv, std::int64_t tokens) noexcept {
  const Tenant& tenant = tenant_[request.index()];
  const auto end = static_cast<std::size_t>(tokens / options_.block_size_tokens);
  for (std::size_t i = 0; i < end; ++i) kv_[block_of(kv, i)] = tenant;
  const std::span<const RowState> states = states_.of(request);
  for (std::size_t g = 0; g < slots_.size() && in_columns_; ++g) slots_[g][states[g].conv_source().index()] = tenant;
}

void TenantMarks::kv_moved(CopyPlan copies) noexcept {
  for (const SlotCopy& copy : copies)
    kv_[static_cast<std::size_t>(copy.dst_slot)] = kv_[static_cast<std::size_t>(copy.src_slot)];
}

void TenantMarks::memory_came(MemoryPart part, std::int32_t first, std::int32_t count) noexcept {
  if (part == MemoryPart::states && separate_) return;
  Writers& writers = part == MemoryPart::kv ? kv_ : slots_[0];
  std::fill_n(writers.begin() + first, count, unknown);
}

bool TenantMarks::owns_rest(RequestId request, const KvRow& kv, std::int64_t computed) const noexcept {
  const Tenant& tenant = tenant_[request.index()];
  const std::size_t end = blocks_of(kv);
  for (auto i = static_cast<std::size_t>(computed / options_.block_size_tokens); i < end; ++i)
    if (kv_[block_of(kv, i)] != tenant) return false;
  return true;
}

}  // namespace stateport::detail
