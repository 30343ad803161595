// SPDX-License-Identifier: Apache-2.0
// An engine with tiers below the device. Its model is made up: the state after n tokens and the KV of a block follow
// from these tokens, and a token that is sampled follows from both, so that a wrong byte gives another answer.
#pragma once

#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/backends/runtime.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>
#include <stateport/tiers/state_tiers.hpp>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace example {

using stateport::Token;
using Tokens = std::vector<Token>;

constexpr std::int32_t block_tokens = 16;
constexpr std::int64_t state_elements = 64;

inline void expect(bool ok, const char* problem) {
  if (ok) return;
  std::fprintf(stderr, "%s\n", problem);
  std::exit(1);
}

/// A prompt of this length. Two prompts share their first 100 tokens.
inline Tokens prompt_of(std::int64_t tokens, Token question) {
  Tokens prompt(static_cast<std::size_t>(tokens));
  std::iota(prompt.begin(), prompt.end(), 1);
  for (std::size_t i = 100; i < prompt.size(); ++i) prompt[i] += question;
  return prompt;
}

inline stateport::StateSpec state_spec() {
  return stateport::StateSpec::uniform(1, {}, {.shape = {state_elements, 1, 1}});
}
/// The KV of one block, as the state of a slot: tiers move blocks as they move states.
inline stateport::StateSpec kv_spec() {
  return stateport::StateSpec::uniform(1, {}, {.shape = {block_tokens, 1, 1}});
}
inline std::int64_t image_bytes(const stateport::StateSpec& spec) {
  return static_cast<std::int64_t>(stateport::ImageLayout(spec, {}).image_bytes());
}

class Engine {
 public:
  struct Answer {
    Tokens tokens;
    std::int64_t reused_tokens = 0;  ///< of the prompt: they were not computed
    std::int64_t loaded_tokens = 0;  ///< of these, so many needed a load from a tier
  };

  // docs: make the tiers
  /// `tiers` says what the cache may place in each tier, `memory` what the mover of the bytes has for it.
  Engine(stateport::TierOptions tiers, stateport::StateTiersOptions memory) : cache_(make_cache(tiers)) {
    memory.states = {&states_};
    memory.kv = &kv_;
    memory.model = stateport::ModelId("made-up model, revision 1");
    mover_.emplace(host_memory_, memory);
    // Images of an earlier run. One for which the tier has no room is removed.
    if (mover_->files() != nullptr)
      for (const stateport::ImageKey& image : mover_->files()->keys())
        if (!cache_->tiers()->attach(stateport::Medium::file, image)) mover_->remove(stream_, {&image, 1});
  }
  // docs end

  // docs: a request that loads
  Answer answer(const Tokens& prompt, std::int64_t answer_tokens) {
    const auto started = cache_->start({.tokens = prompt});
    expect(started.has_value(), "no room");
    const stateport::RequestId request = started->request;
    mover_->execute(stream_, started->transfers);
    while (cache_->tiers()->is_loading(request)) end_transfers();
    const std::int64_t reused = cache_->computed(request);
    const std::int64_t end = std::ssize(prompt) + answer_tokens;
    while (std::ssize(cache_->tokens(request)) < end) run_pass(request, std::ssize(prompt));
    const auto tokens = cache_->tokens(request);
    Answer result{{tokens.begin() + std::ssize(prompt), tokens.end()}, reused, reused - started->reused_tokens};
    cache_->finish(request);
    end_transfers();
    return result;
  }
  // docs end

  // docs: drain
  /// Writes all that is cached to the slowest tier: before the process ends.
  void drain(stateport::Medium slowest) {
    for (std::int64_t written = -1; written < cache_->tiers()->usage(slowest).bytes_written;) {
      written = cache_->tiers()->usage(slowest).bytes_written;
      mover_->execute(stream_, cache_->tiers()->drain());
      wait_for_transfers();
    }
  }
  // docs end

  void wait_for_transfers() {
    while (cache_->tiers()->transfers_under_way() > 0) end_transfers();
  }

 private:
  // docs: transfers that have ended
  /// Tells the cache which transfers have ended, and begins those that it decides then.
  void end_transfers() {
    std::array<stateport::TransferResult, 64> results;
    const std::size_t count = mover_->poll(stream_, results);
    mover_->execute(stream_, cache_->tiers()->settle(std::span(results).first(count)).transfers);
    if (count == 0) std::this_thread::yield();
  }
  // docs end

  static std::unique_ptr<stateport::RequestCache> make_cache(stateport::TierOptions tiers) {
    tiers.state_image_bytes = image_bytes(state_spec());
    tiers.kv_image_bytes = image_bytes(kv_spec());
    return stateport::make_request_cache(
        {.index = stateport::CacheIndex::tree,
         .layout = stateport::SlotLayout{.layout_fingerprint = state_spec().fingerprint(), .checkpoints = 2},
         .max_requests = 2,
         .max_request_tokens = 256,
         .block_size_tokens = block_tokens,
         .kv_tokens = 512,
         .tiers = tiers});
  }

  // docs: a pass with tiers
  void run_pass(stateport::RequestId request, std::int64_t prompt_tokens) {
    const std::int64_t budget = cache_->computed(request) < prompt_tokens ? 64 : 1;
    const stateport::PassRow row{.request = request,
                                 .tokens = static_cast<std::int32_t>(cache_->chunk(request, budget).tokens)};
    const stateport::PassPlan plan = cache_->plan({&row, 1});
    expect(plan.rows_without_room == 0, "no room");
    mover_->execute(stream_, plan.transfers);  // before all else of the plan
    copier_.clear_slots(stream_, plan.groups[0].clear);
    copier_.copy_slots(stream_, plan.groups[0].copies);
    const std::optional<Token> token = forward(plan.rows[0], cache_->tokens(request));
    const std::int32_t count = token ? 1 : 0;
    const Token sampled = token.value_or(0);
    const stateport::PassCommit commit = cache_->commit(plan.pass, {&count, 1}, {&sampled, token ? 1u : 0u});
    mover_->execute(stream_, commit.transfers);
    copier_.copy_slots(stream_, commit.groups[0].copies);
    end_transfers();
  }
  // docs end

  using State = std::array<float, state_elements>;

  std::optional<Token> forward(const stateport::RowPlan& row, std::span<const Token> tokens) {
    const stateport::RowState& where = row.states[0];
    State state = {};
    if (where.read_column >= 0) read(states_, where.recurrent_source().value(), 0, state);
    const std::int64_t end = row.start + row.tokens;
    for (std::int64_t position = row.start; position < end; ++position) {
      const auto token = static_cast<float>(tokens[static_cast<std::size_t>(position)]);
      for (float& element : state) element = std::fmod(31 * element + token, 65521.0f);
      write(kv_, row.kv.at(position) / block_tokens, row.kv.at(position) % block_tokens, std::span(&token, 1));
      for (const stateport::StateSave& save : where.saves)
        if (row.start + save.offset == position + 1)
          write(states_, save.slot.value(), 0, std::span<const float>(state));
    }
    write(states_, where.target().value(), 0, std::span<const float>(state));
    if (end < std::ssize(tokens)) return std::nullopt;
    float attention = 0;
    for (std::int64_t position = 0; position < end; ++position) {
      float one = 0;
      read(kv_, row.kv.at(position) / block_tokens, row.kv.at(position) % block_tokens, std::span(&one, 1));
      attention += one;
    }
    return static_cast<Token>(std::fmod(state[0] + attention, 997.0f));
  }

  void read(const stateport::StateStore& store, std::int32_t slot, std::int32_t first, std::span<float> out) const {
    const auto* from =
        store.tensors()[0].slot_data(stateport::SlotId{slot}) + sizeof(float) * static_cast<unsigned>(first);
    stateport::copy_bytes(stream_, out.data(), from, out.size_bytes());
    stream_.synchronize();
  }
  void write(const stateport::StateStore& store, std::int32_t slot, std::int32_t first, std::span<const float> in) {
    auto* to = store.tensors()[0].slot_data(stateport::SlotId{slot}) + sizeof(float) * static_cast<unsigned>(first);
    stateport::copy_bytes(stream_, to, in.data(), in.size_bytes());
    stream_.synchronize();
  }

  std::unique_ptr<stateport::RequestCache> cache_;
  stateport::Runtime runtime_;
  stateport::Stream stream_ = stateport::Stream::default_stream();
  stateport::DeviceResource memory_;
  stateport::PinnedResource host_memory_;
  stateport::StateStore states_{memory_, state_spec(), {.slots = stateport::state_slots(cache_->options())}, stream_};
  stateport::StateStore kv_{memory_, kv_spec(), {.slots = stateport::kv_blocks(cache_->options())}, stream_};
  stateport::SlotCopier copier_{states_};
  std::optional<stateport::StateTiers> mover_;
};

}  // namespace example
