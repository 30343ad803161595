// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/serve/cache_options.hpp>

#include "serve/request_book.hpp"
#include "serve/request_options.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace stateport::detail {

/// The deepest position at which a prompt leaves a state, in tokens: before its last `tail` tokens, or at the deepest
/// named position behind that. `usable` instead, if the hit is less than `step` tokens before: it is the same prompt
/// again, or a short one.
[[nodiscard]] constexpr std::int64_t before_tail(std::int64_t prompt, std::int64_t tail, std::int64_t block,
                                                 std::span<const std::int64_t> named, std::int64_t reused,
                                                 std::int64_t step) noexcept {
  const std::int64_t usable = (prompt - 1) / block * block;
  std::int64_t place = std::max<std::int64_t>(prompt - tail, 0) / block * block;
  for (const std::int64_t at : named)
    if (at > place && at <= usable) place = at;
  return place - reused >= step ? place : usable;
}

/// Where one request leaves checkpoints, in tokens. See CheckpointPlacement.
struct PromptCheckpoints {
  CheckpointPlacement placement = CheckpointPlacement::last;
  bool by_block = false;    ///< index hash: placement passes saves at the starts of blocks
  std::int64_t block = 1;   ///< tokens of a block
  std::int64_t reused = 0;  ///< p, in tokens
  std::int64_t cached = 0;  ///< j, in tokens; whole blocks
  std::int64_t prompt = 0;
  std::int64_t spare = 0;         ///< SlotLayout::spare_checkpoint_tokens
  std::int64_t decode_every = 0;  ///< SlotLayout::decode_checkpoint_tokens
  std::int64_t scan_step = 1;     ///< distance in tokens at which a pass can save its state; 0: only at its end
  std::int64_t tail = 0;          ///< SlotLayout::tail_tokens
  std::span<const std::int64_t> named = {};  ///< RequestBook::breakpoints_of()
  std::span<const std::int64_t> asked = {};  ///< those of the prompt alone, which move last()
  std::int32_t named_saves = 0;              ///< SlotLayout::breakpoint_saves

  /// The last whole block of the prompt that leaves the forward a token: the same prompt continues from no later state.
  [[nodiscard]] constexpr std::int64_t usable() const noexcept { return (prompt - 1) / block * block; }

  /// Where the prompt leaves a state: usable(), or before its tail.
  [[nodiscard]] constexpr std::int64_t last() const noexcept {
    return tail == 0 ? usable() : before_tail(prompt, tail, block, asked, reused, step());
  }
  /// Where the prompt leaves the cached prefix; 0: so soon behind the hit that it is the state before the tail of the
  /// prompt that it leaves. One more state would save few tokens.
  [[nodiscard]] constexpr std::int64_t branch() const noexcept {
    return tail > 0 && cached - reused < tail + step() ? 0 : cached;
  }
  /// Distance of the positions at which passes from the start of a prompt can leave states.
  [[nodiscard]] constexpr std::int64_t step() const noexcept {
    return scan_step > 0 ? std::lcm(scan_step, block) : block;
  }
  /// The pass runs into the tail of the prompt, where it leaves no state.
  [[nodiscard]] constexpr bool ends_in_tail(std::int64_t end) const noexcept {
    return tail > 0 && end > last() && last() != usable();
  }

  [[nodiscard]] constexpr bool is_named(std::int64_t at) const noexcept {
    return std::ranges::find(named, at) != named.end();
  }

  /// Whether the placement wants the state after `at` tokens, whole blocks. `passes` is not decided here.
  [[nodiscard]] constexpr bool wants(std::int64_t at) const noexcept {
    if (at <= reused || at > prompt) return false;
    if (placement == CheckpointPlacement::every || at == last()) return true;
    constexpr std::int64_t rung_max = 4;
    const std::int64_t before_end = (last() - at) / block;
    switch (placement) {
      case CheckpointPlacement::rungs:
        return at == branch() || (at > cached && before_end > 0 && before_end <= rung_max &&
                                  std::has_single_bit(static_cast<std::uint64_t>(before_end)));
      case CheckpointPlacement::branch:
        return at == branch() && before_end > 0;
      default:
        return false;
    }
  }
  /// Whether a pass from `start` to `end`, whole blocks of the prompt, keeps the state at its end. The state at the end
  /// of the prompt is kept only in place of the one at usable(), if there is none or the pass cannot stop there.
  [[nodiscard]] constexpr bool wants_end(std::int64_t start, std::int64_t end) const noexcept {
    if (end < prompt || placement == CheckpointPlacement::every)
      return placement == CheckpointPlacement::passes || wants(end);
    if (start == usable()) return start == 0;
    return start > usable() || scan_step == 0 || (usable() - start) % scan_step != 0;
  }
  /// Whether it would be placed there too if that took nothing from others.
  [[nodiscard]] constexpr bool wants_if_spare(std::int64_t at) const noexcept {
    return spare > 0 && at % spare == 0 && at > cached && at <= prompt && !wants(at) && !is_named(at);
  }

  /// Whether the state at the end of a pass, of the prompt or behind it, is a checkpoint.
  [[nodiscard]] constexpr bool ends_on_checkpoint(std::int64_t start, std::int64_t end) const noexcept {
    if (end % block != 0) return false;
    if (end > prompt) return decode_every > 0 && end % decode_every == 0;
    if (is_named(end)) return true;
    if (ends_in_tail(end)) return start < last() && deepest_save(start, last()) == start;
    if (placement != CheckpointPlacement::passes || !by_block || end == prompt) return wants_end(start, end);
    const std::int64_t last_block = last() == usable() ? prompt / block * block : last();
    return end == last_block || end == branch() || scan_step == 0;
  }
  /// Whether a pass that starts at `start` can save the state after `at` tokens.
  [[nodiscard]] constexpr bool can_save(std::int64_t start, std::int64_t at) const noexcept {
    return at > start && scan_step > 0 && (at - start) % scan_step == 0;
  }
  /// The last position up to `at`, at which a pass that starts at `start` can save its state; `start`: there is none.
  [[nodiscard]] constexpr std::int64_t deepest_save(std::int64_t start, std::int64_t at) const noexcept {
    while (scan_step > 0 && at > start && !can_save(start, at)) at -= block;
    return scan_step > 0 ? std::max(at, start) : start;
  }
  /// The positions at which a pass over the prompt saves its state on its way, ascending.
  void saves(std::int64_t start, std::int64_t end, std::vector<std::int64_t>& positions) const {
    positions.clear();
    if (scan_step == 0) return;
    place(start, end, positions);
    const auto insert = [&](std::int64_t at) {
      const auto next = std::ranges::lower_bound(positions, at);
      if (next == positions.end() || *next != at) positions.insert(next, at);
    };
    if (ends_in_tail(end) && deepest_save(start, last()) > start) insert(deepest_save(start, last()));
    each_named(start, end, [&](std::int64_t at, bool is_saved) {
      if (is_saved) insert(at);
      return true;
    });
  }
  /// Where a pass over the prompt ends that could run up to `end`: at the first named position that it cannot save, or
  /// before the tail.
  [[nodiscard]] constexpr std::int64_t cut(std::int64_t start, std::int64_t end) const {
    if (start < last() && ends_in_tail(end) && deepest_save(start, last()) == start) end = last();
    each_named(start, end, [&](std::int64_t at, bool is_saved) {
      if (!is_saved) end = at;
      return is_saved;
    });
    return end;
  }

 private:
  /// Calls visit(at, is_saved) for the named positions inside the pass, ascending, until it answers false.
  /// `is_saved`: the pass saves its state there.
  template <class Visit>
  constexpr void each_named(std::int64_t start, std::int64_t end, Visit&& visit) const {
    std::int32_t saved = 0;
    std::int64_t before = start;
    for (const std::int64_t at : named) {
      if (at <= before) continue;
      if (at >= end) return;
      before = at;
      const bool placed = placement != CheckpointPlacement::passes && wants(at);
      if (!visit(at, can_save(start, at) && (placed || saved++ < named_saves))) return;
    }
  }
  void place(std::int64_t start, std::int64_t end, std::vector<std::int64_t>& positions) const {
    const auto add = [&](std::int64_t at) {
      if (at < end && can_save(start, at) && (positions.empty() || at > positions.back())) positions.push_back(at);
    };
    if (placement != CheckpointPlacement::passes) {
      for (std::int64_t at = floor_to(start, block) + block; at < end; at += block)
        if (wants(at)) add(at);
    } else if (by_block) {
      std::array<std::int64_t, pass_saves_max> candidates = {branch(), floor_to(prompt, block),
                                                             floor_to(end - 1, block)};
      if (is_named(end) || (tail > 0 && end == last() && end < usable())) candidates.back() = 0;
      if (ends_in_tail(end)) candidates = {branch()};
      std::ranges::sort(candidates);
      std::ranges::for_each(candidates, add);
    } else {
      const std::int64_t leaves = floor_to(std::min(branch(), usable()), step());
      if (leaves > reused) add(leaves);
      if (!ends_on_checkpoint(start, end) && !ends_in_tail(end)) add(deepest_save(start, floor_to(end - 1, block)));
    }
  }
};

[[nodiscard]] inline PromptCheckpoints checkpoints_of(const RequestBook& book, RequestId request) {
  const SlotLayout& layout = book.slots;
  const RequestRecord& record = book.record(request);
  return {.placement = layout.placement,
          .by_block = book.options.index == CacheIndex::hash,
          .block = book.options.block_size_tokens,
          .reused = book.opened_of(request).reused_tokens,
          .cached = book.opened_of(request).cached_tokens,
          .prompt = record.prompt_tokens,
          .spare = layout.spare_checkpoint_tokens,
          .decode_every = layout.decode_checkpoint_tokens,
          .scan_step = layout.scan_alignment_tokens < 0 ? 0 : std::max(layout.scan_alignment_tokens, 1),
          .tail = record.tail_tokens,
          .named = book.breakpoints_of(request),
          .asked = book.asked_breakpoints_of(request),
          .named_saves = layout.breakpoint_saves};
}

/// Where the prompt, whose pass began at `start`, would leave states with such a tail and without. Named positions do
/// not count: with a tail the state at the end, which no later prompt uses, is not kept beside them.
[[nodiscard]] inline TailUse::Places tail_places(const RequestBook& book, RequestId request, std::int64_t tail,
                                                 std::int64_t start) {
  PromptCheckpoints prompt = checkpoints_of(book, request);
  std::int64_t step = prompt.step();
  if (book.in_columns) prompt.block = step = book.grid_tokens;
  TailUse::Places places{
      .before_tail = before_tail(prompt.prompt, tail, prompt.block, prompt.asked, prompt.reused, step),
      .usable = prompt.usable(),
      .other = prompt.reused};
  const auto keeps = [&](std::int64_t at) {
    if (at <= places.before_tail) places.other = std::max(places.other, at);
  };
  const bool saves = !book.in_columns && prompt.scan_step > 0;
  places.leaves_end =
      book.in_columns || saves || prompt.prompt % prompt.block == 0 || start == places.usable;  // chunks may end there
  if (saves && prompt.placement != CheckpointPlacement::last) keeps(std::min(prompt.cached, places.before_tail));
  for (std::int64_t rung = 1; saves && prompt.placement == CheckpointPlacement::rungs && rung <= 4; rung *= 2)
    if (places.usable - rung * prompt.block > prompt.cached) keeps(places.usable - rung * prompt.block);
  if (book.in_columns || prompt.placement == CheckpointPlacement::passes)
    keeps(floor_to(start < places.before_tail ? start : book.record(request).pass_before_tail, prompt.block));
  return places;
}

/// How much of the prompt the next pass runs: see RequestIndex::split.
[[nodiscard]] inline PromptChunk split_at_checkpoints(const RequestBook& book, RequestId request, std::int64_t start,
                                                      std::int64_t tokens) {
  if (book.record(request).tail_tokens > 0 || !book.breakpoints_of(request).empty())
    tokens = checkpoints_of(book, request).cut(start, start + tokens) - start;
  return {.tokens = tokens, .least_budget = 1};
}

/// Whether the state at the end of the row is a checkpoint: one that is inserted always is, if it is whole blocks.
[[nodiscard]] inline bool ends_on_checkpoint(const RequestBook& book, const Pass& pass, const RowPlan& row) {
  const std::int64_t end = row.start + row.tokens;
  if (end % book.options.block_size_tokens != 0) return false;
  return pass.inserts || checkpoints_of(book, row.request).ends_on_checkpoint(row.start, end);
}

/// The position of the state that the steps of a decoding row passed and that becomes a checkpoint; 0: there is none.
[[nodiscard]] inline std::int64_t checkpoint_of_steps(const RequestBook& book, const RowPlan& row) {
  const std::int64_t every = book.slots.decode_checkpoint_tokens;
  const std::int64_t at = every > 0 ? floor_to(book.record(row.request).computed, every) : 0;
  return at > row.start ? at : 0;
}

/// Before the first pass of a request, its live slot gets the state of the hit, or begins with the empty one. An insert
/// brings the state itself, and a fork reads the slot of its point.
inline void begin_live_slot(const RequestBook& book, Pass& pass, RequestId request) {
  if (book.record(request).begun || book.record(request).is_fork) return;
  const SlotId live = book.states.of(request)[0].target();
  const SlotId hit = book.opened_of(request).hit;
  if (hit.valid() && !pass.inserts)
    pass.copies[0].push_back(SlotCopy::whole(hit, live));
  else
    pass.clear[0].push_back(live);
}

}  // namespace stateport::detail
