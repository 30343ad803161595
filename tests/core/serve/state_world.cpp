// SPDX-License-Identifier: Apache-2.0
#include "state_world.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>
#include <variant>

namespace stateport::test {
namespace {

StateWorld::Tokens joined(const StateWorld::Tokens& known, const StateWorld::Tokens& fed, std::size_t count) {
  StateWorld::Tokens all = known;
  all.insert(all.end(), fed.begin(), fed.begin() + static_cast<std::ptrdiff_t>(count));
  return all;
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

StateWorld::KvTokens extended(const StateWorld::KvTokens& tokens, Token next) {
  constexpr std::uint64_t odd = 0x9e3779b97f4a7c15;
  return {tokens.count + 1, mixed(tokens.hash ^ mixed(static_cast<std::uint64_t>(next) + odd))};
}

StateWorld::KvTokens all_of(const StateWorld::Tokens& tokens) {
  return std::accumulate(tokens.begin(), tokens.end(), StateWorld::KvTokens{}, extended);
}

}  // namespace

StateWorld::StateWorld(const RequestCacheOptions& options)
    : options_(options),
      checkpoints_(static_cast<std::size_t>(has_separate_checkpoints(options) ? checkpoint_slots(options) : 0)),
      scratch_(static_cast<std::size_t>(scratch_slots(options))),
      kv_(static_cast<std::size_t>(kv_blocks(options) * options.block_size_tokens)) {
  for (std::size_t g = 0; g < group_count(options); ++g)
    slots_.emplace_back(static_cast<std::size_t>(state_slots(options, g)));
}

/// The copies of a launch run in no order: all read the states from before the launch.
void StateWorld::copy(CopyPlan plan, const Slots& from, Slots& to) {
  validate(plan, static_cast<std::int32_t>(from.size()), static_cast<std::int32_t>(to.size()), &from == &to);
  std::map<std::int32_t, Slot> old;
  for (const SlotCopy& copy : plan)
    for (const std::int32_t slot : {copy.src_slot, copy.recurrent_src_slot})
      if (slot >= 0) old.try_emplace(slot, from[static_cast<std::size_t>(slot)]);
  for (const SlotCopy& copy : plan) {
    Slot& dst = to[static_cast<std::size_t>(copy.dst_slot)];
    if (copy.src_slot >= 0) {
      const Slot& src = old.at(copy.src_slot);
      dst.inputs = src.inputs;
      dst.base = src.base + copy.conv_shift;
    }
    if (copy.recurrent_src_slot >= 0) dst.recurrent = old.at(copy.recurrent_src_slot).recurrent;
  }
}

void StateWorld::before(const PassPlan& plan) {
  REQUIRE(plan.ready);
  const std::int64_t block_size = options_.block_size_tokens;
  for (const std::int64_t block : plan.scrub.kv_blocks)
    std::fill_n(kv_.begin() + block * block_size, block_size, KvTokens{});
  for (const SlotCopy& copy : plan.fork_copies) copy_kv(copy);
  for (const SlotId slot : plan.scrub.scratch) scratch_.at(slot.index()) = {};
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    for (const SlotId slot : plan.groups[g].clear) slots_[g][slot.index()] = whole({});
    copy(plan.groups[g].copies, checkpoints(g), slots_[g]);
  }
  steps_.clear();
}

std::optional<StateWorld::Tokens> StateWorld::read(const RowState& state, std::size_t group) const {
  if (state.read_column < 0) return Tokens{};
  const std::optional<Tokens>& recurrent = slots_[group][state.recurrent_source().index()].recurrent;
  const Slot& conv = slots_[group][state.conv_source().index()];
  if (!recurrent || !conv.inputs || conv.base + state.read_bias != std::ssize(*recurrent)) return std::nullopt;
  if (conv.inputs->size() < recurrent->size()) return std::nullopt;
  if (!std::equal(recurrent->begin(), recurrent->end(), conv.inputs->begin())) return std::nullopt;
  return recurrent;
}

void StateWorld::check_kv(const KvRow& row, const Tokens& tokens) const {
  KvTokens wanted;
  for (const Token token : tokens) {
    const std::int64_t at = wanted.count;
    wanted = extended(wanted, token);
    if (kv_[static_cast<std::size_t>(row.at(at))] == wanted) continue;
    CAPTURE(at);
    REQUIRE(kv_[static_cast<std::size_t>(row.at(at))] == wanted);
  }
}

void StateWorld::check(const HitPlaces& places, const Tokens& tokens, std::size_t group) {
  REQUIRE(places.tokens == std::ssize(tokens));
  check_kv(places.kv, tokens);
  const Slot& state = checkpoints(group)[places.state.index()];
  REQUIRE(state.recurrent == tokens);
  REQUIRE(state.inputs);
  REQUIRE(state.base == std::ssize(tokens));
  REQUIRE(state.inputs->size() >= tokens.size());
  REQUIRE(std::equal(tokens.begin(), tokens.end(), state.inputs->begin()));
}

void StateWorld::insert(const RowPlan& row, const Tokens& tokens) {
  REQUIRE(row.room);
  REQUIRE(row.start + row.tokens == std::ssize(tokens));
  check_kv(row.kv, joined({}, tokens, static_cast<std::size_t>(row.start)));
  KvTokens kv;
  for (const Token token : tokens) {
    const std::int64_t at = kv.count;
    kv = extended(kv, token);
    if (at >= row.start) kv_[static_cast<std::size_t>(row.kv.at(at))] = kv;
  }
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    REQUIRE(row.states[g].saves.empty());
    slots_[g][row.states[g].target().index()] = whole(tokens);
  }
}

void StateWorld::run(std::size_t index, const RowPlan& row, const Tokens& known, const Tokens& fed) {
  REQUIRE(row.room);
  REQUIRE(row.start == std::ssize(known));
  REQUIRE(std::cmp_equal(fed.size(), row.tokens));
  check_kv(row.kv, known);
  KvTokens kv = all_of(known);
  for (std::size_t i = 0; i < fed.size(); ++i) {
    kv = extended(kv, fed[i]);
    kv_[static_cast<std::size_t>(row.kv.at(row.start + static_cast<std::int64_t>(i)))] = kv;
    if (!in_columns(options_) && row.drafts > 0)
      steps_[static_cast<std::int32_t>(index)].push_back(joined(known, fed, i + 1));
  }
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    const std::optional<Tokens> state = read(row.states[g], g);
    REQUIRE(state);
    REQUIRE(*state == known);
    write(g, row.states[g], row, known, fed);
  }
}

void StateWorld::run_tree(std::size_t index, const RowPlan& row, const Tokens& known, const Tokens& fed,
                          std::span<const std::int32_t> parents) {
  REQUIRE(row.room);
  REQUIRE(row.start == std::ssize(known));
  REQUIRE(std::cmp_equal(fed.size(), row.tokens));
  REQUIRE(std::cmp_equal(parents.size(), row.drafts));
  check_kv(row.kv, known);
  REQUIRE(read(row.states[0], 0) == known);
  std::vector<Tokens>& steps = steps_[static_cast<std::int32_t>(index)];
  for (std::size_t i = 0; i < fed.size(); ++i) {
    Tokens path = i == 0 ? known : steps[static_cast<std::size_t>(parents[i - 1])];
    path.push_back(fed[i]);
    kv_[static_cast<std::size_t>(row.kv.at(row.start + static_cast<std::int64_t>(i)))] = all_of(path);
    steps.push_back(path);
  }
}

void StateWorld::write(std::size_t group, const RowState& state, const RowPlan& row, const Tokens& known,
                       const Tokens& fed) {
  for (const StateSave& save : state.saves) {
    const Tokens tokens = joined(known, fed, static_cast<std::size_t>(save.offset));
    REQUIRE((save.in_scratch || !has_separate_checkpoints(options_)));
    (save.in_scratch ? scratch_ : slots_[group])[save.slot.index()] = whole(tokens);
  }
  const bool steps = !in_columns(options_) && row.drafts > 0;
  if (steps) return;
  for (std::int32_t draft = 0; draft <= row.drafts; ++draft) {
    const auto count = static_cast<std::size_t>(row.tokens - row.drafts + draft);
    slots_[group][state.target(draft).index()].recurrent = joined(known, fed, count);
  }
  Slot& conv = slots_[group][state.target().index()];
  conv.inputs = joined(known, fed, fed.size());
  conv.base = row.start + row.tokens - row.drafts;
}

void StateWorld::begin(const Transfer& transfer) {
  using Kind = Transfer::Kind;
  if (transfer.kind == Kind::find) return;
  auto& from = tier(transfer.from);
  const ImageName name = this->name(transfer.image);
  if (transfer.kind == Kind::drop) {
    REQUIRE(transfer.from != Medium::remote);  // others may need it
    const bool was_there = from.erase(name) == 1;
    // Of several groups those that arrived are dropped with those that did not, and of a state that was withdrawn the
    // image that was to come.
    const bool was_lost = lost_.erase({transfer.from, name}) == 1;
    REQUIRE((was_there || was_lost || slots_.size() > 1 || options_.integrity));
    return;
  }
  if (transfer.kind != Kind::store) {
    REQUIRE((transfer.from == Medium::elsewhere || transfer.from == Medium::remote || from.contains(name) ||
             lost_.contains({transfer.from, name})));
    REQUIRE((transfer.kind == Kind::load || transfer.to > transfer.from));
    if (const auto image = from.find(name); image != from.end()) moving_[transfer.id] = image->second;
    return;
  }
  Image& image = moving_[transfer.id];
  REQUIRE((transfer.to == Medium::remote || !tier(transfer.to).contains(name)));
  REQUIRE(transfer.place >= 0);
  const auto block = static_cast<std::size_t>(options_.block_size_tokens);
  if (transfer.image.content == CacheContent::state) {
    const Slots& slots = checkpoints(static_cast<std::size_t>(transfer.image.group));
    image.state = slots[static_cast<std::size_t>(transfer.place)];
    REQUIRE(image.state.recurrent);
    REQUIRE(std::ssize(*image.state.recurrent) == transfer.image.tokens);
    return;
  }
  const auto first = kv_.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(transfer.place) * block);
  image.kv.assign(first, first + static_cast<std::ptrdiff_t>(block));
  REQUIRE(image.kv.back().count == transfer.image.tokens);
}

void StateWorld::end(const Transfer& transfer, bool done) {
  if (transfer.kind == Transfer::Kind::find) return;
  REQUIRE((moving_.contains(transfer.id) || !done));
  const Image image = std::exchange(moving_[transfer.id], {});
  moving_.erase(transfer.id);
  if (transfer.kind == Transfer::Kind::load) {
    const auto place = static_cast<std::size_t>(transfer.place);
    const auto block = static_cast<std::size_t>(options_.block_size_tokens);
    if (transfer.image.content == CacheContent::state)
      checkpoints(static_cast<std::size_t>(transfer.image.group))[place] = done ? image.state : Slot{};
    else
      for (std::size_t i = 0; i < block; ++i) kv_[place * block + i] = done ? image.kv[i] : KvTokens{};
    return;
  }
  if (!done) return;
  lost_.erase({transfer.to, name(transfer.image)});
  const auto [stored, is_new] = tier(transfer.to).emplace(name(transfer.image), image);
  REQUIRE((is_new || (transfer.to == Medium::remote && stored->second.kv == image.kv &&
                      stored->second.state.recurrent == image.state.recurrent)));
}

void StateWorld::lose(const Transfer& transfer) {
  if (tier(transfer.from).erase(name(transfer.image)) == 1) lost_.emplace(transfer.from, name(transfer.image));
}

void StateWorld::change_remote(Random& random) {
  const bool goes = random.chance(70);
  Images& from = goes ? remote_->images : remote_->gone;
  Images& to = goes ? remote_->gone : remote_->images;
  for (std::int64_t count = random.between(1, 5); count > 0 && !from.empty(); --count) {
    const auto image = std::next(from.begin(), random.between(0, std::ssize(from) - 1));
    to.insert(from.extract(image));
  }
}

bool StateWorld::was_remote(const ImageKey& image) const {
  return remote_->images.contains(name(image)) || remote_->gone.contains(name(image));
}

void StateWorld::take_images(const StateWorld& other) {
  tiers_ = other.tiers_;
  *remote_ = *other.remote_;
}

void StateWorld::keep_kv(const Tokens& tokens) {
  BlockHasher hasher({.kind = options_.hash, .block_size_tokens = options_.block_size_tokens});
  const auto block = static_cast<std::size_t>(options_.block_size_tokens);
  BlockDigest digest;
  KvTokens kv;
  for (std::size_t end = block; end <= tokens.size(); end += block) {
    const auto own = std::span(tokens).subspan(end - block, block);
    digest = hasher.hash_block(digest, own);
    Image image;
    for (const Token token : own) image.kv.push_back(kv = extended(kv, token));
    tier(Medium::elsewhere)[{digest.prefix().words, static_cast<std::int64_t>(end), CacheContent::kv_block, 0}] = image;
  }
}

std::int64_t StateWorld::leading_blocks(std::span<const PrefixHash> blocks) {
  const auto missing = std::ranges::find_if(blocks, [&](const PrefixHash& block) {
    const auto found = tier(Medium::elsewhere).lower_bound({block.words, 0, CacheContent::kv_block, 0});
    return found == tier(Medium::elsewhere).end() || std::get<0>(found->first) != block.words;
  });
  return missing - blocks.begin();
}

std::int64_t StateWorld::images(Medium medium) const {
  return std::ssize(tier(medium));
}

std::vector<ImageKey> StateWorld::keys(Medium medium) const {
  std::vector<ImageKey> keys;
  for (const auto& [name, image] : tier(medium)) {
    const auto& [words, tokens, content, group] = name;
    keys.push_back({.prefix = {words}, .tokens = tokens, .content = content, .group = group});
  }
  return keys;
}

/// Steps, copies from scratch and the others may run in one launch: no slot is written twice.
void StateWorld::check_targets(const GroupCommit& group) {
  std::set<std::int32_t> kept;
  const auto once = [&](std::int32_t slot) { REQUIRE(kept.insert(slot).second); };
  for (const StepCommit& step : group.steps)
    if (step.kept_step >= 0) once(step.kept_slot.value());
  for (const CopyPlan plan : {group.from_scratch, group.copies})
    for (const SlotCopy& copy : plan) once(copy.dst_slot);
}

void StateWorld::move_kv(std::span<const KvMove> moves) {
  for (const KvMove& move : moves) kv_[static_cast<std::size_t>(move.dst)] = kv_[static_cast<std::size_t>(move.src)];
}

void StateWorld::after(const PassCommit& commit) {
  move_kv(commit.kv_moves);
  if (!in_columns(options_)) check_targets(commit.groups[0]);
  for (const StepCommit& step : commit.groups[0].steps) {
    const auto put = [&](std::int32_t at, SlotId slot, Slots& slots) {
      if (at < 0) return;
      const Tokens& tokens = steps_.at(step.row).at(static_cast<std::size_t>(at));
      slots.at(slot.index()) = whole(tokens);
    };
    put(step.live_step, step.live_slot, slots_[0]);
    put(step.kept_step, step.kept_slot, checkpoints(0));
  }
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    copy(commit.groups[g].from_scratch, scratch_, checkpoints(g));
    copy(commit.groups[g].copies, slots_[g], checkpoints(g));
  }
}

void StateWorld::after_end(CopyPlan copies) {
  REQUIRE((copies.empty() || has_separate_checkpoints(options_)));
  copy(copies, slots_[0], checkpoints(0));
}

void StateWorld::copy_kv(const SlotCopy& copy) {
  const std::ptrdiff_t block = options_.block_size_tokens;
  std::copy_n(kv_.begin() + copy.src_slot * block, block, kv_.begin() + copy.dst_slot * block);
}

void StateWorld::wipe(MemoryPart part, std::int32_t first, std::int32_t count) {
  if (part == MemoryPart::states) {
    Slots& slots = checkpoints(0);
    for (std::int32_t slot = first; slot < first + count && std::cmp_less(slot, slots.size()); ++slot)
      slots[static_cast<std::size_t>(slot)] = {};
    return;
  }
  const auto block = static_cast<std::size_t>(options_.block_size_tokens);
  for (std::size_t i = static_cast<std::size_t>(first) * block;
       i < static_cast<std::size_t>(first + count) * block && i < kv_.size(); ++i)
    kv_[i] = {};
}

}  // namespace stateport::test
