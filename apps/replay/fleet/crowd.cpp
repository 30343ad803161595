// SPDX-License-Identifier: Apache-2.0
#include "fleet/crowd.hpp"

#include <stateport/core/model/error.hpp>

#include "containers/flat_map.hpp"
#include "workload/prompt_blocks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstddef>
#include <limits>
#include <utility>

namespace stateport::replay {
namespace {

using Block = PromptBlocks::Block;

/// More different continuations than one conversation has, with all its edits.
constexpr std::uint32_t continuations_of_one = 16;
constexpr std::uint64_t copy_delay_ms_max = 60'000;

/// How many different blocks follow each block.
class Continuations {
 public:
  explicit Continuations(const PromptBlocks& blocks) : after_(blocks.count(), 0) {
    for (Block block = 0; block < blocks.count(); ++block)
      if (blocks.parent(block) != PromptBlocks::none) ++after_[blocks.parent(block)];
  }
  [[nodiscard]] bool ends_opening(Block block) const { return after_[block] > continuations_of_one; }

 private:
  std::vector<std::uint32_t> after_;
};

/// The block behind the shared opening of the current prompt; none: there is none.
Block naming_block(const PromptBlocks& blocks, const Continuations& continuations) {
  for (std::int32_t depth = blocks.size(); depth > 0; --depth)
    if (continuations.ends_opening(blocks.at(depth)))
      return depth == blocks.size() ? PromptBlocks::none : blocks.at(depth + 1);
  return blocks.size() == 0 ? PromptBlocks::none : blocks.at(1);
}

void name_conversations(const Workload& workload, PromptBlocks& blocks, std::vector<std::uint64_t>& names) {
  constexpr std::uint64_t of_session = 1;
  constexpr std::uint64_t of_block = 2;
  constexpr std::uint64_t of_request = 3;
  const auto name = [](std::uint64_t kind, std::uint64_t number) { return mix(mix(kind) + number); };
  const Continuations continuations(blocks);
  for (std::size_t i = 0; i < workload.size(); ++i) {
    const std::int64_t session = workload.request(i).session;
    if (session >= 0) {
      names.push_back(name(of_session, static_cast<std::uint64_t>(session)));
      continue;
    }
    blocks.read(workload.blocks(i));
    const Block block = naming_block(blocks, continuations);
    names.push_back(block == PromptBlocks::none ? name(of_request, i) : name(of_block, block));
  }
}

/// A conversation of a copy that was drawn.
struct Turn {
  std::int64_t arrival_ms = 0;
  std::uint64_t copy = 0;
  std::size_t request = 0;
  friend auto operator<=>(const Turn&, const Turn&) = default;
};

/// A number in [0, 1) that looks random.
double draw(std::uint64_t name) {
  return std::ldexp(static_cast<double>(mix(name) >> 11), -53);
}

std::uint64_t name_of_copy(std::uint64_t conversation, std::uint64_t copy) {
  return copy == 0 ? conversation : mix(conversation ^ mix(copy));
}

std::vector<Turn> draw_turns(const Workload& workload, const Conversations& conversations,
                             const CrowdOptions& options) {
  const auto copies = static_cast<std::uint64_t>(std::ceil(options.load));
  std::vector<Turn> turns;
  for (std::uint64_t copy = 0; copy < copies; ++copy) {
    const double of_copy = std::min(options.load - static_cast<double>(copy), 1.0);
    for (std::size_t i = 0; i < workload.size(); ++i) {
      const std::uint64_t name = name_of_copy(conversations.of[i], copy);
      if (of_copy < 1 && draw(name) >= of_copy) continue;
      if (options.part < 1 && draw(name ^ mix(options.seed)) >= options.part) continue;
      const std::uint64_t delay_ms = copy == 0 ? 0 : mix(name + 1) % copy_delay_ms_max;
      turns.push_back({workload.request(i).arrival_ms + static_cast<std::int64_t>(delay_ms), copy, i});
    }
  }
  std::ranges::stable_sort(turns);
  return turns;
}

}  // namespace

Conversations find_conversations(const Workload& workload) {
  Conversations found;
  PromptBlocks blocks;
  for (std::size_t i = 0; i < workload.size(); ++i) blocks.read(workload.blocks(i));
  name_conversations(workload, blocks, found.of);
  constexpr std::uint64_t none = 0;
  std::vector<std::pair<std::uint64_t, bool>> owners(blocks.count(), {none, false});  // name, and whether it is shared
  for (std::size_t i = 0; i < workload.size(); ++i) {
    blocks.read(workload.blocks(i));
    for (std::int32_t depth = 1; depth <= blocks.size(); ++depth) {
      auto& [owner, shared] = owners[blocks.at(depth)];
      shared |= owner != none && owner != found.of[i];
      owner = found.of[i];
    }
  }
  for (std::size_t i = 0; i < workload.size(); ++i) {
    blocks.read(workload.blocks(i));
    std::int32_t shared = 0;
    while (shared < blocks.size() && owners[blocks.at(shared + 1)].second) ++shared;
    found.shared_blocks.push_back(shared);
  }
  return found;
}

Crowd make_crowd(const Workload& workload, const Conversations& conversations, const CrowdOptions& options) {
  require(std::isfinite(options.load) && options.load > 0, "load", fmt::format("{}", options.load),
          "must be finite and more than 0");
  require(options.part > 0 && options.part <= 1, "part", fmt::format("{}", options.part), "more than 0, at most 1");
  Crowd crowd{.workload = Workload(workload.block_size_tokens()), .conversations = {}};
  std::vector<BlockIdentity> identities;
  for (const Turn& turn : draw_turns(workload, conversations, options)) {
    const std::span<const BlockIdentity> blocks = workload.blocks(turn.request);
    identities.assign(blocks.begin(), blocks.end());
    const auto shared = static_cast<std::size_t>(conversations.shared_blocks[turn.request]);
    if (turn.copy > 0)
      for (BlockIdentity& identity : std::span(identities).subspan(shared)) identity = mix(identity ^ mix(turn.copy));
    Request request = workload.request(turn.request);
    request.arrival_ms = turn.arrival_ms;
    if (turn.copy > 0 && request.hint.session != 0)
      request.hint.session = mix(request.hint.session ^ mix(turn.copy)) | 1;
    crowd.workload.add(request, identities);
    crowd.conversations.push_back(name_of_copy(conversations.of[turn.request], turn.copy));
  }
  return crowd;
}

Workload add_flood(const Workload& quiet, double times) {
  const Crowd flood = make_crowd(quiet, find_conversations(quiet), {.load = times});
  Workload both(quiet.block_size_tokens());
  std::size_t next = 0;
  const auto add_quiet = [&](std::int64_t until_ms) {
    for (; next < quiet.size() && quiet.request(next).arrival_ms <= until_ms; ++next) {
      Request request = quiet.request(next);
      request.tenant = Tenant::quiet;
      both.add(request, quiet.blocks(next));
    }
  };
  std::vector<BlockIdentity> identities;
  for (std::size_t i = 0; i < flood.workload.size(); ++i) {
    Request request = flood.workload.request(i);
    add_quiet(request.arrival_ms);
    request.tenant = Tenant::flood;
    // Copies of a session have its number, and their conversations have names of their own.
    if (request.session >= 0) request.session = static_cast<std::int64_t>(mix(flood.conversations[i]) >> 1);
    identities.clear();
    for (const BlockIdentity identity : flood.workload.blocks(i)) identities.push_back(mix(~identity));
    both.add(request, identities);
  }
  add_quiet(std::numeric_limits<std::int64_t>::max());
  return both;
}

}  // namespace stateport::replay
