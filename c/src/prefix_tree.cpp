// SPDX-License-Identifier: Apache-2.0
// Inputs and outputs of a prefix tree, between C and C++.
#include "prefix_tree.hpp"

#include <stateport/core/model/error.hpp>

#include "arguments.hpp"
#include "eviction.hpp"

#include <array>
#include <bit>
#include <optional>
#include <string_view>

namespace stateport::c {
namespace {

static_assert(STATEPORT_LOST_NO_CHECKPOINT == static_cast<int>(LostHit::no_checkpoint) + 1 &&
              STATEPORT_LOST_OFF_GRID == static_cast<int>(LostHit::off_grid) + 1 &&
              STATEPORT_LOST_EVICTED == static_cast<int>(LostHit::evicted) + 1 &&
              STATEPORT_LOST_TOO_FEW_TOKENS == static_cast<int>(LostHit::too_few_tokens) + 1 &&
              STATEPORT_LOST_LOCKED_POOL == static_cast<int>(LostHit::locked_pool) + 1);
static_assert(STATEPORT_VICTIM_TOKENS == static_cast<int>(VictimKind::tokens) &&
              STATEPORT_VICTIM_STATES == static_cast<int>(VictimKind::states) &&
              STATEPORT_VICTIM_BYTES == static_cast<int>(VictimKind::bytes));
static_assert(STATEPORT_TAG_MATCH == static_cast<int>(TagCheck::match) &&
              STATEPORT_TAG_EMPTY == static_cast<int>(TagCheck::empty) &&
              STATEPORT_TAG_TOKEN_COUNT == static_cast<int>(TagCheck::token_count) &&
              STATEPORT_TAG_PREFIX == static_cast<int>(TagCheck::prefix) &&
              STATEPORT_TAG_LAYOUT == static_cast<int>(TagCheck::layout));

std::optional<std::string_view> key(const void* data, std::size_t bytes, const char* argument) {
  const auto characters = array(static_cast<const char*>(data), bytes, argument);
  if (data == nullptr) return std::nullopt;
  return std::string_view(characters.data(), characters.size());
}

/// A past in C: zeros are none, else the bits of the time, and
///
///     63     42 41 40      39        32 31          0
///     [   0    ][1][repeat][ generation ][known blocks]
constexpr unsigned generation_at = 32;
constexpr unsigned repeat_at = 40;
constexpr unsigned there_at = 41;

std::array<std::uint64_t, 2> to_c(const PromptPast& past) noexcept {
  if (!past.looked_up_s) return {};
  return {std::bit_cast<std::uint64_t>(*past.looked_up_s),
          std::uint64_t{1} << there_at | std::uint64_t{past.repeat} << repeat_at |
              std::uint64_t{past.generation} << generation_at | static_cast<std::uint32_t>(past.known_blocks)};
}

PromptPast from_c(const std::uint64_t (&words)[2]) {
  if (words[0] == 0 && words[1] == 0) return {};
  require(words[1] >> there_at == 1, "past[1]", words[1], "must be of a match");
  return {.looked_up_s = std::bit_cast<double>(words[0]),
          .known_blocks = static_cast<std::int32_t>(words[1]),
          .generation = static_cast<std::uint8_t>(words[1] >> generation_at),
          .repeat = (words[1] >> repeat_at & 1) != 0};
}

}  // namespace

PrefixTree::Options TreeObject::with(PrefixTree::Options options, TreeVictimFunction on_victim) {
  if (on_victim.call == nullptr) return options;
  // An exception would leave the tree half changed: the program ends instead.
  options.on_victim = [this, on_victim](const Victim& victim) noexcept {
    stateport_victim reported = to_c(victim);
    reported.size = sizeof reported;
    const Callback callback(*this);
    return on_victim.call(&reported, on_victim.context) != 0;
  };
  return options;
}

NodeId node_from_c(std::uint64_t node) noexcept {
  return {static_cast<std::uint32_t>(node), static_cast<std::uint32_t>(node >> 32)};
}
std::uint64_t to_c(NodeId node) noexcept {
  return node.is_root() ? 0 : std::uint64_t{node.generation} << 32 | node.index;
}

Namespace from_c(const stateport_namespace* name_space) {
  const auto given = read_optional_struct(name_space, "name_space");
  return {key(given.extra_key, given.extra_key_bytes, "extra_key"), key(given.salt, given.salt_bytes, "salt")};
}

PrefixInsert from_c(const stateport_insert& given) {
  return {
      .tokens = array(given.tokens, given.count, "tokens"),
      .kv = array(given.kv, given.count, "kv"),
      .slot = SlotId{given.slot},
      .name_space = from_c(given.name_space),
      .prev_tokens = given.prev_tokens,
      .priority = given.priority,
      .chunked = given.chunked != 0,
      .prompt = {.tokens = given.request_tokens, .past = from_c(given.past), .hint = read_hint(given.hint, "hint")}};
}

stateport_match to_c(const PrefixMatch& match) noexcept {
  const auto past = to_c(match.past);
  return {.node = to_c(match.node),
          .tokens = match.tokens,
          .walked_tokens = match.walked_tokens,
          .branching_position = match.branching_position.value_or(0),
          .slot = match.slot.value(),
          .live_slot = match.live_slot.value(),
          .lost = match.lost ? static_cast<std::int32_t>(*match.lost) + 1 : STATEPORT_LOST_NOTHING,
          .prefix = {match.tag.prefix.words[0], match.tag.prefix.words[1]},
          .past = {past[0], past[1]},
          .kv_node = to_c(match.kv_node)};
}

stateport_victim to_c(const Victim& victim) noexcept {
  return {.node = to_c(victim.node),
          .end_tokens = victim.end_tokens,
          .slot = victim.slot.value(),
          .prefix = {victim.tag.prefix.words[0], victim.tag.prefix.words[1]},
          .tokens = victim.tokens.data(),
          .kv = victim.kv.data(),
          .count = victim.tokens.size()};
}

stateport_insert_result to_c(const InsertResult& result) noexcept {
  return {.prefix_tokens = result.prefix_tokens, .node = to_c(result.node), .state_exists = result.state_exists};
}

}  // namespace stateport::c
