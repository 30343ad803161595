// SPDX-License-Identifier: Apache-2.0
#include "align_world.hpp"

#include "align/chunk_split.hpp"
#include "align/state_hit.hpp"
#include "older_split.hpp"

#include <algorithm>
#include <numeric>

namespace stateport::test {

void AlignWorld::step() {
  for (std::size_t slot = 0; slot < requests_.size(); ++slot) {
    Request& request = requests_[slot];
    if (request.running && random_.chance(6)) preempt(slot, false);
    if (!request.running && random_.chance(70)) start(slot);
  }
  if (random_.chance(2)) reset_cache();
  std::vector<std::size_t> batch;
  for (std::size_t slot = 0; slot < requests_.size(); ++slot)
    if (requests_[slot].running && schedule(requests_[slot])) batch.push_back(slot);
  for (std::size_t i = batch.size(); i > 1; --i)
    std::swap(batch[i - 1], batch[static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(i) - 1))]);
  run(batch);
  for (const std::size_t slot : batch) after(slot);
  planner_.check_invariants();
}

AlignOptions AlignWorld::draw() {
  asynchronous_ = random_.chance(50);
  drops_block_ = random_.chance(50);
  AlignOptions options{.drafts = random_.between32(0, 3), .max_requests = random_.between32(1, 3), .groups = {}};
  const std::int64_t count = random_.between(1, 2);
  for (std::int64_t g = 0; g < count; ++g) {
    // ColumnTable's condition for states in draft columns.
    const std::int32_t smallest = 1 + (asynchronous_ ? 2 : 1) * options.drafts;
    const std::int32_t block =
        g == 0 ? random_.between32(smallest, smallest + 6) : options.groups[0].block_size_tokens * 2;
    options.groups.push_back({.block_size_tokens = block, .blocks = static_cast<std::int32_t>(block_count)});
    grid_ = std::lcm(grid_, std::int64_t{block});
  }
  return options;
}

void AlignWorld::new_sequence(Request& request) {
  request.prefix.assign(1, random_.chance(50) ? 0x9e3779b97f4a7c15u : 0xc2b2ae3d27d4eb4fu);
  const std::int64_t shared = random_.between(0, 60);
  const Symbol own = random_.bits();
  for (std::int64_t n = 1; n <= sequence_tokens; ++n)
    request.prefix.push_back((request.prefix.back() ^ (n <= shared ? 1 : own)) * 0xd1342543de82ef95u + 1);
  request.prompt = random_.between(1, 50);
}

void AlignWorld::start(std::size_t slot) {
  Request& request = requests_[slot];
  if (!request.began) new_sequence(request);
  request.began = request.running = true;
  request.previous_start = -1;
  request.rows.clear();
  for (std::size_t g = 0; g < groups_.size(); ++g)
    request.rows.emplace_back(static_cast<std::int32_t>(block_size(g)), planner_.options().drafts);
  request.computed = hit_of(request);
  const RequestIndex id{static_cast<std::int32_t>(slot)};
  if (random_.chance(50))
    planner_.add_request(id, request.computed);
  else
    planner_.forget({}, {}, std::vector{id});  // the pre-step derives the column
}

std::int64_t AlignWorld::hit_of(Request& request) {
  const auto cached = [&](std::int64_t tokens) {
    return std::ranges::all_of(groups_, [&](const Group& group) {
      return group.cache.contains(request.prefix[static_cast<std::size_t>(tokens)]);
    });
  };
  const detail::StateHit hit = detail::longest_state_hit(
      request.prompt - 1, grid_, grid_, [&](std::int32_t column) { return cached((column + 1) * grid_); });
  if (hit.tokens == 0) return 0;
  ++hits;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::int32_t id = groups_[g].cache.at(request.prefix[static_cast<std::size_t>(hit.tokens)]);
    ++groups_[g].blocks[static_cast<std::size_t>(id)].owners;
    request.rows[g].start_from_hit(static_cast<std::int32_t>(hit.tokens / block_size(g)) - 1, BlockId{id});
  }
  return hit.tokens;
}

void AlignWorld::leave(std::size_t slot) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    std::vector<BlockId> released;
    requests_[slot].rows[g].clear(released);
    give_back(g, released);
  }
  requests_[slot].running = false;
}

void AlignWorld::preempt(std::size_t slot, bool forced) {
  Request& request = requests_[slot];
  leave(slot);
  request.prompt = std::max(request.prompt, std::min(request.computed + 1, sequence_tokens));
  if (!forced) planner_.forget({}, std::vector{RequestIndex{static_cast<std::int32_t>(slot)}}, {});
}

void AlignWorld::reset_cache() {
  for (std::size_t slot = 0; slot < requests_.size(); ++slot)
    if (requests_[slot].running) preempt(slot, true);
  for (Group& group : groups_) {
    for (Block& block : group.blocks) block.key = garbage;
    group.cache.clear();
  }
}

bool AlignWorld::schedule(Request& r) {
  const bool decode = r.computed >= r.prompt;
  r.drafts = decode ? random_.between32(0, planner_.options().drafts) : 0;
  std::int64_t tokens = 1 + r.drafts;
  if (!decode) {
    const std::int64_t budget =
        std::min(random_.chance(20) ? sequence_tokens : random_.between(1, 24), r.prompt - r.computed);
    tokens = options_.older_split ? OlderSplit{.block = grid_,
                                               .prompt = r.prompt,
                                               .total = r.prompt,
                                               .drops_block = drops_block_,
                                               .partial_hit_block = {},
                                               .shared_boundary = {}}(r.computed, budget)
                                  : detail::split_chunk({r.computed, budget, r.prompt, r.prompt, drops_block_}, grid_);
  }
  r.scheduled = static_cast<std::int32_t>(tokens);
  const bool samples = r.computed + tokens >= r.prompt;
  r.sampled = samples ? random_.between32(1, 1 + r.drafts) : 0;
  if (tokens == 0) return false;
  make_room(r);
  return true;
}

void AlignWorld::make_room(Request& r) {
  const bool late = asynchronous_ && r.previous_start >= 0;
  const std::int64_t believed = late ? r.previous_start + r.previous_scheduled : r.computed;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    std::vector<BlockId> released;
    r.rows[g].release(late ? r.previous_start : r.computed, released);
    give_back(g, released);
    std::vector<BlockId> fresh(static_cast<std::size_t>(r.rows[g].fresh_blocks(believed + r.scheduled)));
    for (BlockId& id : fresh) id = take_block(g);
    r.rows[g].grow(believed + r.scheduled, fresh);
    r.rows[g].check_invariants();
    // Two steps then span at most two boundaries.
    const std::int32_t drafts = planner_.options().drafts;
    if (block_size(g) >= 2 * (1 + drafts)) REQUIRE(r.rows[g].held_blocks() <= (asynchronous_ ? 3 : 2) + drafts);
  }
}

BlockId AlignWorld::take_block(std::size_t g) {
  Group& group = groups_[g];
  std::int32_t found = -1;
  for (std::int32_t id = 1; id < static_cast<std::int32_t>(block_count); ++id) {
    const Block& block = group.blocks[static_cast<std::size_t>(id)];
    if (block.owners == 0 && (found < 0 || block.key == garbage)) found = id;
    if (found == id && block.key == garbage) break;
  }
  REQUIRE(found > 0);
  Block& block = group.blocks[static_cast<std::size_t>(found)];
  if (block.key != garbage) group.cache.erase(block.key);
  block = {};
  block.owners = 1;
  planner_.publication(static_cast<std::int32_t>(g)).forget(BlockId{found});
  return BlockId{found};
}

void AlignWorld::run(const std::vector<std::size_t>& batch) {
  std::vector<std::int32_t> request, computed, scheduled, drafts, sampled;
  const auto push = [&](std::int32_t slot, const Request& r) {
    request.push_back(slot);
    computed.push_back(static_cast<std::int32_t>(r.computed));
    scheduled.push_back(r.scheduled);
    drafts.push_back(r.drafts);
    sampled.push_back(r.sampled);
  };
  for (const std::size_t slot : batch) {
    if (random_.chance(10)) push(-1, Request{});
    push(static_cast<std::int32_t>(slot), requests_[slot]);
  }
  std::vector<std::vector<std::int32_t>> ids(groups_.size());
  std::vector<BlockTable> tables;
  constexpr std::int32_t columns = 120;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    ids[g].resize(request.size() * columns, 0);
    for (std::size_t row = 0; row < request.size(); ++row)
      if (request[row] >= 0)
        std::ranges::copy(requests_[static_cast<std::size_t>(request[row])].rows[g].columns(),
                          ids[g].begin() + static_cast<std::ptrdiff_t>(row * columns));
    tables.push_back({ids[g], columns, columns});
  }
  const AlignBatch arrays{request, computed, scheduled, drafts};
  static_cast<void>(planner_.pre_step(arrays, tables));
  copy_blocks();
  for (const std::size_t slot : batch) forward(slot);
  planner_.accept(request, sampled);
  if (random_.chance(50)) {
    std::vector<std::int32_t> advanced(request.size(), 0);
    for (std::size_t row = 0; row < request.size(); ++row)
      advanced[row] = computed[row] + scheduled[row] - drafts[row] + std::max(sampled[row], 1) - 1;
    static_cast<void>(planner_.post_step_advanced(request, advanced, tables));
  } else {
    static_cast<void>(planner_.post_step(arrays, tables));
  }
  copy_blocks();
}

void AlignWorld::copy_blocks() {
  for (std::size_t g = 0; g < groups_.size(); ++g)
    for (const SlotCopy& copy : planner_.plan(static_cast<std::int32_t>(g))) {
      REQUIRE(std::min({copy.src_slot, copy.recurrent_src_slot, copy.dst_slot}) > null_block);
      std::vector<Block>& blocks = groups_[g].blocks;
      std::vector<Symbol> conv = blocks[static_cast<std::size_t>(copy.src_slot)].conv;
      conv.erase(conv.begin(), conv.begin() + std::min<std::ptrdiff_t>(copy.conv_shift, std::ssize(conv)));
      const Symbol recurrent = blocks[static_cast<std::size_t>(copy.recurrent_src_slot)].recurrent;
      Block& dst = written(g, copy.dst_slot);
      dst.conv = std::move(conv);
      dst.recurrent = recurrent;
    }
}

void AlignWorld::forward(std::size_t slot) {
  Request& r = requests_[slot];
  const auto symbol = [&](std::int64_t tokens) { return r.prefix[static_cast<std::size_t>(tokens)]; };
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const auto group = static_cast<std::int32_t>(g);
    const auto column = static_cast<std::size_t>(planner_.columns(group)[slot]);
    const auto bias = static_cast<std::size_t>(accepted_bias(planner_.accepted(group)[slot]));
    const auto block = [&](std::size_t c) { return r.rows[g].columns()[c]; };
    if (r.computed > 0) {
      const std::vector<Symbol>& conv = groups_[g].blocks[static_cast<std::size_t>(block(column))].conv;
      const Symbol recurrent = groups_[g].blocks[static_cast<std::size_t>(block(column + bias))].recurrent;
      if (bias >= conv.size() || conv[bias] != symbol(r.computed) || recurrent != symbol(r.computed)) ++wrong_reads;
    }
    // Drafts that are not kept leave garbage behind the kept ones.
    const std::int64_t running = r.computed + r.scheduled - r.drafts;
    const std::int64_t kept = std::max(r.sampled, 1);
    written(g, block(column)).conv.clear();
    for (std::int64_t j = 0; j <= r.drafts; ++j) {
      const Symbol state = j < kept ? symbol(running + j) : garbage;
      groups_[g].blocks[static_cast<std::size_t>(block(column))].conv.push_back(state);
      written(g, block(column + static_cast<std::size_t>(j))).recurrent = state;
    }
  }
}

void AlignWorld::after(std::size_t slot) {
  Request& r = requests_[slot];
  r.previous_start = r.computed;
  r.previous_scheduled = r.scheduled;
  r.computed += r.scheduled - r.drafts + std::max(r.sampled, 1) - 1;
  for (std::size_t g = 0; g < groups_.size(); ++g) publish(r, g);
  if (r.computed + planner_.options().drafts + 1 < sequence_tokens) return;
  leave(slot);
  r.began = false;
  planner_.forget(std::vector{RequestIndex{static_cast<std::int32_t>(slot)}}, {}, {});
}

void AlignWorld::publish(const Request& r, std::size_t g) {
  for (std::int64_t boundary = block_size(g); boundary <= r.computed; boundary += block_size(g)) {
    const std::int32_t id = r.rows[g].columns()[static_cast<std::size_t>(boundary / block_size(g)) - 1];
    if (id == null_block || groups_[g].blocks[static_cast<std::size_t>(id)].key != garbage) continue;
    const Symbol key = r.prefix[static_cast<std::size_t>(boundary)];
    PublicationCheck& check = planner_.publication(static_cast<std::int32_t>(g));
    if (options_.checked && !check.publish(BlockId{id}, boundary)) {
      ++refusals;
      continue;
    }
    Block& block = groups_[g].blocks[static_cast<std::size_t>(id)];
    ++publications;
    if (block.conv.empty() || block.conv.front() != key || block.recurrent != key) ++wrong_publications;
    if (groups_[g].cache.emplace(key, id).second) block.key = key;
  }
}

}  // namespace stateport::test
