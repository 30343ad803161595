// SPDX-License-Identifier: Apache-2.0
// The engine's side: memory for states and KV, and the forward pass. A real engine has kernels that read and write
// states and KV where they lie; this one copies a state to the host, computes there, and copies it back.
#pragma once

#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/runtime.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>

#include "toy.hpp"

#include <cstdint>
#include <optional>

namespace toy {

class Engine {
 public:
  // docs: states in slots
  Engine(std::int32_t slots, std::size_t kv_tokens)
      : states_(memory_, spec(), {.slots = slots}, stream_), copier_(states_), kv_(kv_tokens) {}

  /// One recurrent tensor. stateport::models has the tensors of public models, and StateStore::view describes tensors
  /// that the engine has allocated itself.
  static stateport::StateSpec spec() {
    return stateport::StateSpec::uniform(1, {}, {.shape = {std::tuple_size_v<State>, 1, 1}});
  }
  // docs end

  // docs: execute copies
  void clear(std::span<const stateport::SlotId> slots) { copier_.clear_slots(stream_, slots); }
  void copy(stateport::CopyPlan copies) { copier_.copy_slots(stream_, copies); }
  // docs end

  State load(stateport::SlotId slot) const {
    State state;
    stateport::copy_bytes(stream_, state.data(), states_.tensors()[0].slot_data(slot), sizeof state);
    stream_.synchronize();
    return state;
  }
  void store(stateport::SlotId slot, const State& state) {
    stateport::copy_bytes(stream_, states_.tensors()[0].slot_data(slot), state.data(), sizeof state);
    stream_.synchronize();
  }

  // docs: forward
  /// Runs one row of a plan. Returns the next token if the row has reached the end of all that is known.
  std::optional<Token> forward(const stateport::RowPlan& row, std::span<const Token> tokens) {
    const stateport::RowState& where = row.states[0];
    State state = where.read_column < 0 ? State{} : load(where.recurrent_source());
    const std::int64_t end = row.start + row.tokens;
    for (std::int64_t position = row.start; position < end; ++position) {
      const Token token = tokens[static_cast<std::size_t>(position)];
      feed(state, token);
      kv_[static_cast<std::size_t>(row.kv.at(position))] = kv_of(token);
      for (const stateport::StateSave& save : where.saves)
        if (row.start + save.offset == position + 1) store(save.slot, state);
    }
    store(where.target(), state);
    computed += static_cast<std::size_t>(row.tokens);
    if (end < std::ssize(tokens)) return std::nullopt;

    float attention = 0;
    for (std::int64_t position = 0; position < end; ++position)
      attention += kv_[static_cast<std::size_t>(row.kv.at(position))];
    return sample(state, attention);
  }
  // docs end

  std::size_t computed = 0;  ///< tokens

 private:
  stateport::Runtime runtime_;
  stateport::Stream stream_ = stateport::Stream::default_stream();
  stateport::DeviceResource memory_;
  stateport::StateStore states_;
  stateport::SlotCopier copier_;
  std::vector<Kv> kv_;
};

}  // namespace toy
