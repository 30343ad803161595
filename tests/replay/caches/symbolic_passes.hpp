// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "caches/cache.hpp"
#include "states/pass_mover.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace stateport::replay::test {

/// Moves symbols: a state is the names of the prefixes that end at its conv tokens, and that of the whole.
class SymbolicPasses final : public PassMover {
 public:
  /// `null_block`: slot 0 stands for none.
  explicit SymbolicPasses(const StateRoom& room, std::int32_t history = 1, std::int32_t drafts = 0,
                          bool null_block = false)
      : history_(history),
        first_slot_(null_block ? 1 : 0),
        states_(static_cast<std::size_t>(room.slots)),
        scratch_(static_cast<std::size_t>(room.scratch_slots)) {
    for (State& state : states_) state.conv.resize(static_cast<std::size_t>(history_ + drafts), nothing);
    for (State& state : scratch_) state.conv.resize(static_cast<std::size_t>(history_), nothing);
  }

  void before(const PassPlan& plan) override {
    for (const SlotId slot : plan.groups.front().clear) at(slot.value()).recurrent = empty_content;
    copy(plan.groups.front().copies);
  }
  void forward(const PassForward& forward) override {
    rows_max = std::max(rows_max, forward.targets.size());
    for (const StateWrite& write : forward.saves) make(write, forward);
    for (const StateWrite& write : forward.targets) make(write, forward);
  }
  void after(const PassCommit& commit) override {
    counts_.commits += commit.published_states;
    for (const SlotCopy& copied : commit.groups.front().from_scratch)
      at(copied.dst_slot) = scratch_.at(static_cast<std::size_t>(copied.src_slot));
    copy(commit.groups.front().copies);
  }
  void after_end(CopyPlan copies) override { copy(copies); }
  void transfer(TransferPlan transfers, std::vector<TransferResult>& answers) override {
    for (const Transfer& transfer : transfers) {
      const auto name = std::pair(transfer.from, transfer.image.prefix.words);
      const auto target = std::pair(transfer.to, transfer.image.prefix.words);
      if (transfer.kind != Transfer::Kind::drop) answers.push_back({.id = transfer.id});
      if (transfer.image.content != CacheContent::state) continue;  // KV is not made
      if (transfer.kind == Transfer::Kind::store) images_[target] = at(transfer.place);
      if (transfer.kind == Transfer::Kind::copy) images_[target] = images_.at(name);
      if (transfer.kind == Transfer::Kind::load) at(transfer.place) = images_.at(name);
      if (transfer.kind == Transfer::Kind::drop) images_.erase(name);
    }
  }
  std::uint64_t check(const RowState& state, std::span<const Content> window, bool restored) override {
    REQUIRE(window.size() == static_cast<std::size_t>(history_));
    std::uint64_t wrong = at(state.recurrent_source().value()).recurrent != window.back();
    const State& conv = at(state.conv_source().value());
    for (std::size_t t = 0; t < window.size(); ++t)
      wrong += conv.conv[t + static_cast<std::size_t>(state.read_bias)] != window[t];
    counts_.restores += restored;
    ++counts_.verified;
    if (!restored) count_copy(state.recurrent_source().value(), window.back());
    counts_.mismatches += wrong != 0;
    return wrong;
  }
  [[nodiscard]] MoverCounts counts() const override { return counts_; }
  /// All states are wrong from now on.
  void spoil_all() {
    for (State& state : states_) state.recurrent += 2;
  }
  std::size_t rows_max = 0;      ///< of a forward
  std::int64_t wrong_reads = 0;  ///< likewise
  std::int64_t copies = 0;       ///< states that were made while another slot had them

 private:
  static constexpr Content nothing = 2;  ///< no name of a prefix is even
  struct State {
    std::vector<Content> conv;
    Content recurrent = nothing;
  };
  std::map<std::pair<Medium, std::array<std::uint64_t, 2>>, State> images_;
  State& at(std::int32_t slot) {
    REQUIRE(slot >= first_slot_);
    return states_.at(static_cast<std::size_t>(slot));
  }
  State& out(const StateWrite& write, std::int32_t slot) {
    return write.in_scratch ? scratch_.at(static_cast<std::size_t>(slot)) : at(slot);
  }

  /// The first slot with a state is the one that others find, as long as nothing is written over it.
  void count_copy(std::int32_t slot, Content content) {
    const auto [first, made] = first_with_.try_emplace(content, slot);
    if (made || first->second == slot) return;
    if (at(first->second).recurrent == content)
      ++copies;
    else
      first->second = slot;
  }
  void copy(CopyPlan copies) {
    for (const SlotCopy& copied : copies) {
      const Content recurrent = at(copied.recurrent_src_slot).recurrent;
      const std::vector<Content> conv = at(copied.src_slot).conv;
      std::copy(conv.begin() + copied.conv_shift, conv.end(), at(copied.dst_slot).conv.begin());
      at(copied.dst_slot).recurrent = recurrent;
    }
  }

  void make(const StateWrite& write, const PassForward& forward) {
    if (write.conv_in >= 0) {
      wrong_reads += at(write.recurrent_in).recurrent != write.from;
      wrong_reads += at(write.conv_in).conv.at(static_cast<std::size_t>(write.bias + history_ - 1)) != write.from;
    }
    const auto window = forward.window.subspan(write.first_content, static_cast<std::size_t>(history_ + write.drafts));
    std::ranges::copy(window, out(write, write.conv_out).conv.begin());
    for (std::int32_t j = 0; j <= write.drafts; ++j)
      out(write, forward.recurrent_out[write.first_out + static_cast<std::size_t>(j)]).recurrent =
          window[static_cast<std::size_t>(history_ - 1 + j)];
  }

  std::int32_t history_;
  std::int32_t first_slot_;
  std::vector<State> states_;
  std::vector<State> scratch_;
  std::map<Content, std::int32_t> first_with_;  ///< slot, by state
  MoverCounts counts_;
};

}  // namespace stateport::replay::test
