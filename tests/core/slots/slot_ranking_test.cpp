// SPDX-License-Identifier: Apache-2.0
// Slot allocators whose policy learns, against a slow model: which states go, and in which order.
#include <stateport/core/pool/block_pool.hpp>
#include <stateport/core/slots/slot_allocator.hpp>

#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

using namespace stateport;

namespace {

using Blocks = std::vector<BlockId>;

constexpr std::int64_t block_tokens = 16;

/// Ranks by the tokens that a state saves, and lowers no rank by a use.
class SavedTokens final : public LearningPolicy {
 public:
  std::string_view name() const noexcept override { return "saved tokens"; }
  VictimKey key(const VictimFacts& facts) const noexcept override {
    return {static_cast<std::int32_t>(facts.end_tokens - facts.fallback_tokens), facts.used_tick};
  }
  VictimTraits traits() const noexcept override { return {.key_may_shrink = true}; }
};

std::shared_ptr<EvictionPolicy> make_policy(std::int64_t which) {
  if (which == 0) return std::make_shared<SavedTokens>();
  if (which == 1) return make_eviction_policy(EvictionOrder::gdsf);
  return make_eviction_policy(EvictionOrder::hix, {.positions = 64, .samples = -1});
}

/// Blocks of prompts that begin alike: the prompt of a block goes on from that of its parent.
struct RankedPrompts {
  RankedPrompts(test::Random& random, std::int32_t blocks) {
    for (std::int32_t block = 0; block < blocks; ++block) parents.push_back(random.between32(-1, block - 1));
  }
  /// The blocks of the prompt that ends with this one, the first one first.
  [[nodiscard]] Blocks path(BlockId block) const {
    Blocks path;
    for (std::int32_t at = block.value(); at >= 0; at = parents[static_cast<std::size_t>(at)]) path.emplace_back(at);
    std::ranges::reverse(path);
    return path;
  }
  [[nodiscard]] static BlockHash hash(BlockId block) { return block.value() + 1; }

  std::vector<std::int32_t> parents;
};

/// The states of a slot allocator as a list; every choice by a scan, every fact from scratch.
class RankingModel {
 public:
  RankingModel(const BlockPool& blocks, const RankedPrompts& prompts, std::int32_t slots,
               std::shared_ptr<EvictionPolicy> policy, bool kv_follows)
      : blocks_(blocks),
        prompts_(prompts),
        slots_(slots),
        kv_follows_(kv_follows),
        policy_(std::move(policy)),
        learning_(*policy_->learning()),
        of_block_(static_cast<std::size_t>(blocks.block_count())) {
    learning_.reserve(of_block_.size());
  }

  [[nodiscard]] bool has(BlockId block) const {
    const auto& state = of_block_[block.index()];
    return state && state->alive;
  }

  /// False, and nothing changed, if there is not enough.
  bool allocate(const Blocks& batch) {
    Blocks fresh;
    for (const BlockId block : batch)
      if (!has(block) && std::ranges::count(fresh, block) == 0) fresh.push_back(block);
    const auto held = std::ranges::count_if(of_block_, [](const auto& state) { return state && state->alive; });
    const auto missing = std::ssize(fresh) + held - slots_;
    if (missing > std::ssize(candidates(batch))) return false;
    evict(missing, batch);
    for (const BlockId block : fresh) store(block);
    return true;
  }
  /// Each victim is ranked when those before it are gone.
  void evict(std::int64_t count, const Blocks& spared) {
    for (; count > 0; --count) {
      const Blocks left = candidates(spared);
      if (left.empty()) return;
      const BlockId victim = *std::ranges::min_element(left, [&](BlockId a, BlockId b) {
        const VictimKey key_a = policy_->key(facts(a));
        const VictimKey key_b = policy_->key(facts(b));
        return key_a == key_b ? a < b : key_a < key_b;
      });
      victims.push_back(victim);
      learning_.chosen(facts(victim));
      lose(victim);
    }
  }
  void lose(BlockId block) {
    if (!has(block)) return;
    State& state = *of_block_[block.index()];
    state.alive = false;
    const auto index = static_cast<std::uint32_t>(block.value());
    if (carries(state)) return learning_.lost_state(index);
    const State* left = above(state);
    while (left != nullptr && !left->alive && !carries(*left)) left = above(*left);
    const bool inherits = left != nullptr && left->alive && !carries(*left);
    learning_.removed(index, inherits ? static_cast<std::uint32_t>(left->block.value()) : LearningPolicy::no_heir);
  }
  void serve(BlockId end, const PromptFacts& prompt, double now_s) {
    const Blocks path = prompts_.path(end);
    PromptFacts reported = prompt;
    std::vector<PositionKey> keys;
    for (const BlockId block : path) keys.push_back(static_cast<PositionKey>(RankedPrompts::hash(block)));
    reported.blocks = static_cast<std::int32_t>(path.size());
    reported.keys = std::span(keys).first(std::min(static_cast<std::size_t>(prompt.usable_blocks), keys.size()));
    std::vector<State*> states;
    std::vector<std::int32_t> forks;
    const auto note_fork = [&] {
      if (!states.empty() && continuations(*states.back()) >= 2) forks.push_back(states.back()->depth_blocks);
    };
    for (std::size_t at = 0; at < path.size(); ++at) {
      if (!has(path[at])) continue;
      note_fork();
      auto& state = of_block_[path[at].index()];
      state->end_tokens = static_cast<std::int64_t>(at + 1) * block_tokens;
      state->depth_blocks = static_cast<std::int32_t>(at) + 1;
      state->parent = states.empty() ? nullptr : of_block_[states.back()->block.index()];
      states.push_back(state.get());
    }
    note_fork();
    reported.forks = forks;
    if (learning_.observes_prompts()) {
      learning_.set_time(now_s);
      reported.past = learning_.looked_up(reported);
    }
    for (const State* state : states) {
      const auto index = static_cast<std::uint32_t>(state->block.value());
      if (state->depth_blocks == prompt.hit_blocks) learning_.used(index);
      KeptAt at = state->depth_blocks <= prompt.matched_blocks ? KeptAt::branch : KeptAt::rung;
      if (state->block == end) at = KeptAt::end;
      learning_.kept({.index = index,
                      .has_state = true,
                      .key = keys[static_cast<std::size_t>(state->depth_blocks) - 1],
                      .depth_blocks = state->depth_blocks,
                      .at = at,
                      .prompt = reported});
    }
  }

  Blocks victims;  ///< in order of eviction

 private:
  struct State {
    BlockId block;
    std::int64_t end_tokens = 0;  ///< 0: no request reported it
    std::int32_t depth_blocks = 0;
    std::shared_ptr<State> parent;  ///< the state above it when a request reported both
    bool alive = true;
    bool replaced = false;  ///< its block has another state now: nothing hangs on this one any more
  };

  [[nodiscard]] static const State* above(const State& state) {
    return state.parent && !state.parent->replaced ? state.parent.get() : nullptr;
  }
  /// Whether a longer prefix that has a state hangs on it.
  [[nodiscard]] bool carries(const State& state) const {
    return std::ranges::any_of(of_block_, [&](const auto& other) {
      if (!other || !other->alive) return false;
      const State* at = above(*other);
      while (at != nullptr && at != &state) at = above(*at);
      return at != nullptr;
    });
  }
  /// The states below it with no other state in between.
  [[nodiscard]] std::ptrdiff_t continuations(const State& state) const {
    return std::ranges::count_if(of_block_, [&](const auto& other) {
      return other && above(*other) == &state && (other->alive || carries(*other));
    });
  }
  [[nodiscard]] Blocks candidates(const Blocks& spared) const {
    Blocks list;
    for (std::int32_t index = 0; index < blocks_.block_count(); ++index)
      if (const BlockId block{index};
          has(block) && blocks_.ref_count(block) == 0 && std::ranges::count(spared, block) == 0)
        list.push_back(block);
    return list;
  }
  [[nodiscard]] VictimFacts facts(BlockId block) const {
    const State& state = *of_block_[block.index()];
    const State* fallback = above(state);
    while (fallback != nullptr && !fallback->alive) fallback = above(*fallback);
    VictimFacts facts{.index = static_cast<std::uint32_t>(block.value()),
                      .used_tick = static_cast<std::uint64_t>(blocks_.last_use_tick(block)),
                      .has_state = true,
                      .fallback_tokens = fallback == nullptr ? 0 : fallback->end_tokens};
    facts.end_tokens = std::max(state.end_tokens, facts.fallback_tokens);
    if (carries(state)) return facts;
    facts.chain_tokens = std::max<std::int64_t>(facts.end_tokens - facts.fallback_tokens, 1);
    facts.chain_fallback_tokens = facts.fallback_tokens;
    if (!kv_follows_) return facts;
    const State* needed = above(state);
    while (needed != nullptr && !needed->alive && continuations(*needed) == 1) needed = above(*needed);
    facts.tokens = std::max<std::int64_t>(facts.end_tokens - (needed == nullptr ? 0 : needed->end_tokens), 0);
    return facts;
  }
  void store(BlockId block) {
    auto& state = of_block_[block.index()];
    if (state) {
      const bool carried = carries(*state);
      state->replaced = true;
      if (carried) learning_.removed(static_cast<std::uint32_t>(block.value()), LearningPolicy::no_heir);
    }
    state = std::make_shared<State>(State{.block = block});
  }

  const BlockPool& blocks_;
  const RankedPrompts& prompts_;
  std::int32_t slots_;
  bool kv_follows_;
  std::shared_ptr<EvictionPolicy> policy_;
  LearningPolicy& learning_;
  std::vector<std::shared_ptr<State>> of_block_;  ///< the last state that each block had
};

/// Both, over blocks that are all cached; a request holds some.
class Pair {
 public:
  Pair(test::Random& random, std::int64_t policy, bool kv_follows)
      : random_(random),
        prompts_(random, random.between32(2, 14)),
        blocks_({.blocks = static_cast<std::int32_t>(prompts_.parents.size()) + 1}),
        slots_(random.between32(1, 8)),
        states_(slots_, blocks_,
                {.eviction = make_policy(policy),
                 .on_victim = [this](const SlotVictim& victim) { victims_.push_back(victim.block); },
                 .kv_follows = kv_follows}),
        model_(blocks_, prompts_, slots_.capacity_slots(), make_policy(policy), kv_follows) {
    Blocks all(prompts_.parents.size());
    REQUIRE(blocks_.allocate(all));
    std::vector<BlockHash> hashes;
    for (const BlockId block : all) hashes.push_back(RankedPrompts::hash(block));
    blocks_.register_hashes(all, hashes);
    blocks_.release(all);
  }

  void step() {
    const BlockId block = any();
    switch (random_.between(0, 7)) {
      case 0:
      case 1:
      case 2:
        allocate();
        break;
      case 3:
      case 4:
        serve(block);
        break;
      case 5:
        use(block);
        break;
      case 6:
        states_.invalidate(block);
        model_.lose(block);
        break;
      default: {
        const std::int64_t count = random_.between(0, 3);
        states_.evict(count);
        model_.evict(count, {});
      }
    }
    REQUIRE(victims_ == model_.victims);
    for (std::int32_t index = 0; index + 1 < blocks_.block_count(); ++index)
      REQUIRE(states_.has_state(BlockId{index}) == model_.has(BlockId{index}));
    states_.check_invariants();
  }

 private:
  [[nodiscard]] BlockId any() { return BlockId{random_.between32(0, blocks_.block_count() - 2)}; }
  void allocate() {
    Blocks batch(static_cast<std::size_t>(random_.between(1, 5)));
    for (BlockId& block : batch) block = any();
    std::vector<SlotId> out(batch.size());
    const bool met = states_.try_allocate(batch, out).met();
    REQUIRE(met == model_.allocate(batch));
    if (!met) return;
    for (const BlockId block : batch) {
      const BlockHash hash = RankedPrompts::hash(block);
      states_.set_tag(block, {.token_count = std::ssize(prompts_.path(block)) * block_tokens});
      states_.register_hashes({&block, 1}, {&hash, 1});
    }
  }
  void serve(BlockId end) {
    const Blocks path = prompts_.path(end);
    const auto length = static_cast<std::int32_t>(path.size());
    std::vector<BlockHash> hashes;
    for (const BlockId block : path) hashes.push_back(RankedPrompts::hash(block));
    now_s_ += static_cast<double>(random_.between(0, 100)) / 10;
    const PromptFacts prompt{.usable_blocks = length - random_.between32(0, 1),
                             .matched_blocks = random_.between32(0, length),
                             .hit_blocks = random_.between32(0, length),
                             .hint = {.last_turn = random_.chance(20)}};
    states_.note_served(hashes, prompt, now_s_);
    model_.serve(end, prompt, now_s_);
  }
  void use(BlockId block) {
    blocks_.advance_tick();
    blocks_.retain({&block, 1});
    held_.push_back(block);
    while (!held_.empty() && random_.chance(70)) {
      blocks_.release({&held_.back(), 1});
      held_.pop_back();
    }
  }

  test::Random& random_;
  RankedPrompts prompts_;
  BlockPool blocks_;
  SlotPool slots_;
  Blocks victims_;
  SlotAllocator states_;
  RankingModel model_;
  Blocks held_;
  double now_s_ = 0;
};

}  // namespace

TEST_CASE("a slot allocator ranks each victim as if those before it were gone") {
  test::for_each_seed(1500, [](test::Random& random, std::uint64_t seed) {
    const auto policy = static_cast<std::int64_t>(seed % 3);
    CAPTURE(make_policy(policy)->name());
    Pair pair(random, policy, seed % 2 == 0);
    for (int step = 0; step < 80; ++step) pair.step();
  });
}
