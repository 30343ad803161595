// SPDX-License-Identifier: Apache-2.0
#include "states/forward_writer.hpp"

#include <algorithm>

namespace stateport::replay {

void ForwardWriter::clear() {
  saves_.clear();
  targets_.clear();
  outs_.clear();
  window_.clear();
}

void ForwardWriter::add(const RowPlan& row, const RowState& state, std::int32_t sampled, const Sequence& names) {
  StateWrite write{.from = names.prefix(row.start)};
  if (state.read_column >= 0) {
    write.conv_in = state.conv_source().value();
    write.recurrent_in = state.recurrent_source().value();
    write.bias = state.read_bias;
  }
  for (const StateSave& save : state.saves) {
    write.advanced = save.offset;
    write.in_scratch = save.in_scratch;
    const std::int32_t out = save.slot.value();
    saves_.push_back(completed(write, {&out, 1}, names, row.start + save.offset, row.start + save.offset));
  }
  write.in_scratch = false;
  write.drafts = row.drafts;
  write.advanced = row.tokens - row.drafts;
  const auto column = static_cast<std::size_t>(state.write_column);
  const std::int64_t running = row.start + write.advanced;
  targets_.push_back(completed(write, state.slots.subspan(column, static_cast<std::size_t>(row.drafts) + 1), names,
                               running, running + std::max(sampled, 1) - 1));
}

/// The state after `tokens` tokens goes to `out`; drafts beyond `kept` tokens are not kept.
StateWrite ForwardWriter::completed(StateWrite write, std::span<const std::int32_t> out, const Sequence& names,
                                    std::int64_t tokens, std::int64_t kept) {
  write.conv_out = out.front();
  write.first_out = static_cast<std::uint32_t>(outs_.size());
  outs_.insert(outs_.end(), out.begin(), out.end());
  write.first_content = static_cast<std::uint32_t>(window_.size());
  for (std::int64_t n = tokens - history_ + 1; n <= tokens + write.drafts; ++n)
    window_.push_back(n <= kept ? names.prefix(n) : append_block(0, mix(++rejected_)));
  return write;
}

std::span<const Content> ForwardWriter::window_of(const Sequence& names, std::int64_t tokens) {
  ending_.clear();
  for (std::int64_t n = tokens - history_ + 1; n <= tokens; ++n) ending_.push_back(names.prefix(n));
  return ending_;
}

}  // namespace stateport::replay
