// SPDX-License-Identifier: Apache-2.0
#include "marked_memory.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>

namespace stateport::test {

MarkedMemory::MarkedMemory(const RequestCacheOptions& options, const IgnoredLists& ignored)
    : options_(options), ignored_(ignored), conv_bytes_(part_bytes + static_cast<std::size_t>(options.drafts)) {
  const auto places = [&](std::int64_t count, std::size_t bytes) {
    return Places(static_cast<std::size_t>(count), Bytes(bytes, stranger));
  };
  const std::size_t state = part_bytes + conv_bytes_;
  for (std::size_t g = 0; g < group_count(options); ++g) slots_.push_back(places(state_slots(options, g), state));
  if (has_separate_checkpoints(options)) checkpoints_ = places(checkpoint_slots(options), state);
  scratch_ = places(scratch_slots(options), state);
  steps_ = places(options.max_requests, state * static_cast<std::size_t>(1 + options.drafts));
  kv_ = places(kv_blocks(options), static_cast<std::size_t>(options.block_size_tokens));
}

/// The copies of a launch run in no order: all read the bytes from before the launch. A copy that shifts the conv
/// window does not write the end of it.
void MarkedMemory::copy(CopyPlan plan, const Places& from, Places& to) const {
  const Places old = from;
  const auto conv = static_cast<std::ptrdiff_t>(part_bytes);
  for (const SlotCopy& copy : plan) {
    Bytes& dst = to[static_cast<std::size_t>(copy.dst_slot)];
    if (copy.src_slot >= 0) {
      const Bytes& src = old[static_cast<std::size_t>(copy.src_slot)];
      std::copy(src.begin() + conv + copy.conv_shift, src.end(), dst.begin() + conv);
    }
    if (copy.recurrent_src_slot < 0) continue;
    const Bytes& src = old[static_cast<std::size_t>(copy.recurrent_src_slot)];
    std::copy(src.begin(), src.begin() + conv, dst.begin());
  }
}

void MarkedMemory::before(const PassPlan& plan) {
  const auto clear = [](Bytes& bytes) { std::ranges::fill(bytes, Mark{0}); };
  for (const std::int32_t block : plan.scrub.kv_blocks)
    if (!ignored_.kv_blocks) clear(kv_.at(static_cast<std::size_t>(block)));
  for (const SlotCopy& kv : plan.fork_copies) copy_kv(kv);
  for (const SlotId slot : plan.scrub.scratch)
    if (!ignored_.scratch) clear(scratch_.at(slot.index()));
  for (const std::int32_t row : plan.scrub.draft_rows)
    if (!ignored_.draft_rows) clear(steps_.at(static_cast<std::size_t>(row)));
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    const auto begins = [&](SlotId slot) {
      return !in_columns(options_) && std::ranges::any_of(plan.rows, [&](const RowPlan& row) {
        return row.room && !row.states.empty() && row.states[g].target() == slot;
      });
    };
    for (const SlotId slot : plan.groups[g].clear)
      if (!ignored_.clear || begins(slot)) clear(slots_[g].at(slot.index()));
    copy(plan.groups[g].copies, checkpoints(g), slots_[g]);
  }
}

void MarkedMemory::look(std::span<const Mark> bytes, Mark mark) {
  looked_ += std::ssize(bytes);
  leaks_ += std::ranges::count_if(bytes, [&](Mark byte) { return byte != 0 && byte != mark; });
  own_ += std::ranges::count(bytes, mark);
}

void MarkedMemory::look_at(std::size_t index, const RowPlan& row, Mark mark) {
  const std::int64_t block = options_.block_size_tokens;
  const std::int64_t tokens = std::ssize(row.kv.ids) * row.kv.tokens_per_id;
  for (std::int64_t at = 0; at < tokens; at += block)
    look(kv_.at(static_cast<std::size_t>(row.kv.at(at) / block)), mark);
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    constexpr std::int32_t nothing = 0;
    for (const std::int32_t slot : row.states[g].slots)
      if (!in_columns(options_) || slot != nothing) look(slots_[g].at(static_cast<std::size_t>(slot)), mark);
    for (const StateSave& save : row.states[g].saves)
      look(save.in_scratch ? scratch_.at(save.slot.index()) : slots_[g].at(save.slot.index()), mark);
  }
  if (!in_columns(options_) && row.drafts > 0) look(steps_.at(index), mark);
}

void MarkedMemory::run(std::size_t index, const RowPlan& row, int tenant) {
  look_at(index, row, mark_of(tenant));
  write(index, row, mark_of(tenant));
}

void MarkedMemory::write(std::size_t index, const RowPlan& row, Mark mark) {
  const std::int64_t block = options_.block_size_tokens;
  for (std::int64_t at = row.start; at < row.start + row.tokens; ++at) {
    const KvIndex kv = row.kv.at(at);
    kv_[static_cast<std::size_t>(kv / block)][static_cast<std::size_t>(kv % block)] = mark;
  }
  for (std::size_t g = 0; g < slots_.size(); ++g)
    for (const StateSave& save : row.states[g].saves)
      std::ranges::fill(save.in_scratch ? scratch_[save.slot.index()] : slots_[g][save.slot.index()], mark);
  if (!in_columns(options_) && row.drafts > 0) {
    const std::size_t state = part_bytes + conv_bytes_;
    std::fill_n(steps_[index].begin(), state * static_cast<std::size_t>(row.tokens), mark);
    return;
  }
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    for (std::int32_t draft = 0; draft <= row.drafts; ++draft)
      std::fill_n(slots_[g][row.states[g].target(draft).index()].begin(), part_bytes, mark);
    const auto conv = static_cast<std::ptrdiff_t>(part_bytes);
    std::fill_n(slots_[g][row.states[g].target().index()].begin() + conv, conv + row.drafts, mark);
  }
}

void MarkedMemory::after(const PassCommit& commit) {
  const std::int32_t block = options_.block_size_tokens;
  const auto byte_of = [&](KvIndex at) -> Mark& {
    return kv_[static_cast<std::size_t>(at / block)][static_cast<std::size_t>(at % block)];
  };
  for (const KvMove& move : commit.kv_moves) byte_of(move.dst) = byte_of(move.src);
  const auto state = static_cast<std::ptrdiff_t>(part_bytes + conv_bytes_);
  for (const StepCommit& step : commit.groups[0].steps) {
    const auto put = [&](std::int32_t at, SlotId slot, Places& slots) {
      if (at < 0) return;
      const auto first = steps_.at(static_cast<std::size_t>(step.row)).begin() + at * state;
      slots.at(slot.index()).assign(first, first + state);
    };
    put(step.live_step, step.live_slot, slots_[0]);
    put(step.kept_step, step.kept_slot, checkpoints(0));
  }
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    copy(commit.groups[g].from_scratch, scratch_, checkpoints(g));
    copy(commit.groups[g].copies, slots_[g], checkpoints(g));
  }
}

void MarkedMemory::after_end(CopyPlan copies) {
  copy(copies, slots_[0], checkpoints(0));
}

MarkedMemory::Bytes& MarkedMemory::place_of(const Transfer& transfer) {
  const auto place = static_cast<std::size_t>(transfer.place);
  const bool state = transfer.image.content == CacheContent::state;
  return state ? checkpoints(static_cast<std::size_t>(transfer.image.group)).at(place) : kv_.at(place);
}

void MarkedMemory::begin(const Transfer& transfer) {
  using Kind = Transfer::Kind;
  if (transfer.kind == Kind::find || transfer.kind == Kind::drop) return;
  const ImageKey& key = transfer.image;
  const auto image = images_.find({transfer.from, key.prefix.words, key.tokens, key.content, key.group});
  if (transfer.kind == Kind::store) {
    const Bytes& bytes = moving_[transfer.id] = place_of(transfer);
    // Every reader of the image reads bytes of one tenant only.
    const auto first = std::ranges::find_if(bytes, [](Mark byte) { return byte != 0; });
    REQUIRE(first != bytes.end());
    look(bytes, *first);
  } else if (image != images_.end()) {
    moving_[transfer.id] = image->second;
  }
}

void MarkedMemory::wipe(MemoryPart part, std::int32_t first, std::int32_t count) {
  Places& places = part == MemoryPart::kv ? kv_ : checkpoints(0);
  for (std::int32_t place = first; place < first + count && std::cmp_less(place, places.size()); ++place)
    std::ranges::fill(places[static_cast<std::size_t>(place)], stranger);
}

void MarkedMemory::end(const Transfer& transfer, bool done, int tenant) {
  if (transfer.kind == Transfer::Kind::find) return;
  const Bytes bytes = std::exchange(moving_[transfer.id], {});
  moving_.erase(transfer.id);
  const ImageKey& key = transfer.image;
  if (transfer.kind != Transfer::Kind::load) {
    if (done) images_[{transfer.to, key.prefix.words, key.tokens, key.content, key.group}] = bytes;
    return;
  }
  REQUIRE((!bytes.empty() || !done));
  look(bytes, mark_of(tenant));
  const auto written = static_cast<std::ptrdiff_t>(done ? bytes.size() : bytes.size() / 2);
  std::copy_n(bytes.begin(), written, place_of(transfer).begin());
}

}  // namespace stateport::test
