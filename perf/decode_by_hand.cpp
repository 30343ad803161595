// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/hash/block_hasher.hpp>
#include <stateport/core/pool/block_pool.hpp>
#include <stateport/core/pool/kv_page_pool.hpp>
#include <stateport/core/slots/slot_allocator.hpp>
#include <stateport/core/tree/prefix_tree.hpp>
#include <stateport/parts/align_planner.hpp>

#include "align/column_table.hpp"
#include "decode_workload.hpp"

#include <cstdlib>
#include <optional>
#include <utility>

namespace stateport::perf {
namespace {

constexpr std::int32_t block_size = DecodeShape::block_size;
constexpr std::size_t requests = DecodeShape::requests;

void expect(bool ok) {
  if (!ok) std::abort();
}

/// Arguments of a pass for one row.
struct Row {
  std::int64_t start = 0;
  std::int32_t tokens = 0;
  std::span<const std::int32_t> kv;
  std::span<const std::int32_t> slots;
  std::int32_t column = 0;
  std::int32_t bias = 0;
};

/// The tokens of all requests, and KV in blocks that are found by hash.
class HashedRequests {
 public:
  explicit HashedRequests(const DecodeShape& shape)
      : shape_(shape),
        hasher_({.kind = shape.options().hash, .block_size_tokens = block_size}),
        pool({.blocks = kv_blocks(shape.options())}),
        rows(requests) {}

  struct Request {
    std::vector<Token> tokens;
    std::int64_t computed = 0;
    std::vector<BlockId> blocks;
    std::vector<std::int32_t> ids;
    PromptHashes hashes;
    BlockDigest last;
  };

  void start(Request& request) {
    pool.release(request.blocks);
    request.blocks.clear();
    request.ids.clear();
    request.hashes.clear();
    request.last = {};
    request.computed = DecodeShape::prompt_tokens;
    request.tokens.resize(DecodeShape::prompt_tokens);
    DecodeShape::fill_prompt(request.tokens, ++prompts_);
    reserve(request, DecodeShape::prompt_tokens);
    for (std::int64_t block = 0; (block + 1) * block_size <= request.computed; ++block) register_next(request);
    request.tokens.push_back(7);
  }
  void reserve(Request& request, std::int64_t upto) {
    while (std::ssize(request.blocks) * block_size < upto) {
      BlockId block;
      expect(pool.allocate({&block, 1}));
      request.blocks.push_back(block);
      request.ids.push_back(block.value());
    }
  }
  /// True if a block became full.
  bool keep(Request& request, std::int32_t count) {
    for (std::int32_t i = 0; i < count; ++i) request.tokens.push_back(7);
    request.computed += count;
    if (request.computed < (std::ssize(request.hashes.keys) + 1) * block_size) return false;
    register_next(request);
    return true;
  }

 private:
  void register_next(Request& request) {
    const std::size_t block = request.hashes.keys.size();
    const BlockHash parent = block == 0 ? root_hash : request.hashes.keys.back();
    request.last = hasher_.hash_block(request.last, std::span(request.tokens).subspan(block * block_size, block_size));
    request.hashes.append(request.last);
    pool.register_hashes({&request.blocks[block], 1}, {&request.hashes.keys[block], 1}, {&parent, 1});
  }

  DecodeShape shape_;
  BlockHasher hasher_;
  std::int32_t prompts_ = 0;

 public:
  BlockPool pool;
  std::vector<Request> rows;
};

/// BlockPool and SlotAllocator.
class SlotsByHand final : public DecodeWorkload {
 public:
  explicit SlotsByHand(const DecodeShape& shape)
      : shape_(shape), kv_(shape), slots_(state_slots(shape.options())), states_(slots_, kv_.pool), live_(requests) {
    for (std::int32_t& live : live_) {
      SlotId slot;
      expect(slots_.allocate({&slot, 1}));
      live = slot.value();
    }
  }

  void start() override {
    for (HashedRequests::Request& request : kv_.rows) kv_.start(request);
  }

  void step() override {
    kv_.pool.advance_tick();
    batch_.resize(requests);
    for (std::size_t i = 0; i < requests; ++i) {
      HashedRequests::Request& request = kv_.rows[i];
      const std::int32_t tokens = 1 + shape_.drafts;
      kv_.reserve(request, request.computed + tokens);
      batch_[i] = {.start = request.computed, .tokens = tokens, .kv = request.ids, .slots = {&live_[i], 1}};
    }
    steps_.clear();
    full_.clear();
    blocks_.clear();
    for (std::size_t i = 0; i < requests; ++i) {
      const std::int32_t count = shape_.kept(static_cast<std::int32_t>(i));
      const SlotId live{live_[i]};
      if (shape_.drafts > 0)
        steps_.push_back({.row = static_cast<std::int32_t>(i), .live_step = count - 1, .live_slot = live});
      if (!kv_.keep(kv_.rows[i], count)) continue;
      full_.push_back(i);
      blocks_.push_back(kv_.rows[i].blocks[kv_.rows[i].hashes.keys.size() - 1]);
    }
    if (!full_.empty()) checkpoint();
  }

 private:
  void checkpoint() {
    copies_.clear();
    given_.resize(blocks_.size());
    const SlotDemand demand = states_.try_allocate(blocks_, given_);
    if (!demand.met()) {  // the first ones; the blocks are all different
      const auto kept = static_cast<std::size_t>(demand.available);
      full_.resize(kept);
      blocks_.resize(kept);
      given_.resize(kept);
      states_.allocate(blocks_, given_);
    }
    for (std::size_t i = 0; i < full_.size(); ++i) {
      const HashedRequests::Request& request = kv_.rows[full_[i]];
      const std::int64_t tokens = std::ssize(request.hashes.keys) * block_size;
      states_.withdraw(blocks_[i]);
      states_.set_tag(blocks_[i],
                      {.token_count = tokens, .prefix = request.hashes.prefixes.back(), .layout_fingerprint = 1});
      states_.register_hashes({&blocks_[i], 1}, {&request.hashes.keys.back(), 1});
      if (shape_.drafts == 0) {
        copies_.push_back(SlotCopy::whole(live_[full_[i]], given_[i].value()));
      } else {
        StepCommit& step = steps_[full_[i]];
        step.kept_slot = given_[i];
        step.kept_step = static_cast<std::int32_t>(tokens - batch_[full_[i]].start) - 1;
      }
    }
  }

  DecodeShape shape_;
  HashedRequests kv_;
  SlotPool slots_;
  SlotAllocator states_;
  std::vector<std::int32_t> live_;
  std::vector<Row> batch_;
  std::vector<StepCommit> steps_;
  std::vector<std::size_t> full_;
  std::vector<BlockId> blocks_;
  std::vector<SlotId> given_;
  std::vector<SlotCopy> copies_;
};

/// PrefixTree and KvPagePool. A request keeps its last checkpoint to itself until it ends.
class TreeByHand final : public DecodeWorkload {
 public:
  explicit TreeByHand(const DecodeShape& shape)
      : shape_(shape),
        tree_({.page_size = block_size,
               .slots = state_slots(shape.options()),
               .layout_fingerprint = 1,
               .eviction = shape.options().eviction,
               .kv_indices = shape.options().kv_tokens + block_size}),
        kv_(shape.options().kv_tokens, block_size),
        rows_(requests) {}

  void start() override {
    for (Request& request : rows_) {
      end(request);
      request.live = take_slot().value();
      request.tokens.resize(DecodeShape::prompt_tokens);
      DecodeShape::fill_prompt(request.tokens, ++prompts_);
      request.computed = DecodeShape::prompt_tokens;
      reserve(request, request.computed);
      request.tokens.push_back(7);
      request.boundary = (request.computed / block_size + 1) * block_size;
    }
  }

  void step() override {
    batch_.resize(requests);
    for (std::size_t i = 0; i < requests; ++i) {
      Request& request = rows_[i];
      const std::int32_t tokens = 1 + shape_.drafts;
      reserve(request, request.computed + tokens);
      batch_[i] = {.start = request.computed, .tokens = tokens, .kv = request.kv, .slots = {&request.live, 1}};
    }
    steps_.clear();
    copies_.clear();
    for (std::size_t i = 0; i < requests; ++i) {
      Request& request = rows_[i];
      const std::int32_t count = shape_.kept(static_cast<std::int32_t>(i));
      for (std::int32_t t = 0; t < count; ++t) request.tokens.push_back(7);
      request.computed += count;
      if (shape_.drafts > 0)
        steps_.push_back(
            {.row = static_cast<std::int32_t>(i), .live_step = count - 1, .live_slot = SlotId{request.live}});
      if (request.computed >= request.boundary) checkpoint(request, batch_[i].start);
    }
  }

 private:
  struct Request {
    std::vector<Token> tokens;
    std::int64_t computed = 0;
    std::int64_t boundary = 0;
    std::vector<KvIndex> kv;
    std::int32_t live = -1;
    SlotId kept;
    std::int64_t kept_tokens = 0;
  };

  void evict(EvictDemand demand) {
    freed_.clear();
    tree_.evict(demand, freed_);
    kv_.release(freed_.kv);
  }
  SlotId take_slot() {
    SlotId slot;
    if (tree_.allocate_slots({&slot, 1})) return slot;
    evict({.states = 1});
    expect(tree_.allocate_slots({&slot, 1}));
    return slot;
  }
  void reserve(Request& request, std::int64_t upto) {
    const std::size_t held = request.kv.size();
    if (upto <= std::ssize(request.kv)) return;
    request.kv.resize(static_cast<std::size_t>((upto + block_size - 1) / block_size * block_size));
    const auto fresh = std::span(request.kv).subspan(held);
    if (kv_.allocate(fresh)) return;
    evict({.tokens = std::ssize(fresh)});
    expect(kv_.allocate(fresh));
  }
  void checkpoint(Request& request, std::int64_t start) {
    if (!request.kept.valid()) request.kept = take_slot();
    request.kept_tokens = request.boundary;
    request.boundary += block_size;
    if (shape_.drafts == 0) {
      copies_.push_back(SlotCopy::whole(request.live, request.kept.value()));
    } else {
      steps_.back().kept_slot = request.kept;
      steps_.back().kept_step = static_cast<std::int32_t>(request.kept_tokens - start) - 1;
    }
  }
  void end(Request& request) {
    if (request.live < 0) return;
    const SlotId live{request.live};
    std::int64_t kept = 0;
    if (request.kept.valid()) {
      const auto count = static_cast<std::size_t>(request.kept_tokens);
      const auto key = std::span(request.tokens).first(count);
      tree_.tag_slot(request.kept, tree_.state_tag(key));
      freed_.clear();
      const auto inserted =
          tree_.insert({.tokens = key, .kv = std::span(request.kv).first(count), .slot = request.kept}, freed_);
      expect(!inserted.state_exists);
      kv_.release(freed_.kv);
      kept = request.kept_tokens;
    }
    kv_.release(std::span(request.kv).subspan(static_cast<std::size_t>(kept)));
    tree_.release_slots({&live, 1});
    request.kept = {};
    request.kv.clear();
  }

  DecodeShape shape_;
  PrefixTree tree_;
  KvPagePool kv_;
  std::int32_t prompts_ = 0;
  std::vector<Request> rows_;
  Freed freed_;
  std::vector<Row> batch_;
  std::vector<StepCommit> steps_;
  std::vector<SlotCopy> copies_;
};

/// ColumnTable, AlignPlanner, and two block pools: of KV and of states.
class AlignByHand final : public DecodeWorkload {
 public:
  explicit AlignByHand(const DecodeShape& shape)
      : shape_(shape),
        kv_(shape),
        states_({.blocks = state_slots(shape.options()), .reserved = BlockId{null_block}}),
        planner_({.drafts = shape.drafts,
                  .max_requests = DecodeShape::requests,
                  .groups = {{.block_size_tokens = block_size,
                              .blocks = state_slots(shape.options()),
                              .conv_window = 3 + shape.drafts}}}),
        stride_(static_cast<std::size_t>(shape.options().max_request_tokens / block_size + 2 + shape.drafts)),
        table_(requests * stride_),
        request_(requests),
        computed_(requests),
        scheduled_(requests, 1 + shape.drafts),
        drafts_(requests, shape.drafts) {
    for (std::size_t i = 0; i < requests; ++i) {
      columns_.emplace_back(block_size, shape.drafts, static_cast<std::int32_t>(stride_));
      request_[i] = static_cast<std::int32_t>(i);
      kept_.push_back(shape.kept(request_[i]));
    }
  }

  void start() override {
    for (std::size_t i = 0; i < requests; ++i) {
      released_.clear();
      columns_[i].clear(released_);
      states_.release(released_);
      kv_.start(kv_.rows[i]);
      planner_.add_request(RequestIndex{request_[i]}, 0);
      computed_[i] = 0;
      grow(i, DecodeShape::prompt_tokens);
    }
    const std::vector<std::int32_t> prompts(requests, DecodeShape::prompt_tokens), none(requests, 0), one(requests, 1);
    pass(prompts, none, one);
    std::ranges::fill(computed_, DecodeShape::prompt_tokens);
  }

  void step() override {
    states_.advance_tick();
    kv_.pool.advance_tick();
    batch_.resize(requests);
    for (std::size_t i = 0; i < requests; ++i) {
      HashedRequests::Request& request = kv_.rows[i];
      const std::int64_t upto = request.computed + 1 + shape_.drafts;
      kv_.reserve(request, upto);
      grow(i, upto);
      computed_[i] = static_cast<std::int32_t>(request.computed);
    }
    pass(scheduled_, drafts_, kept_);
    for (std::size_t i = 0; i < requests; ++i)
      if (kv_.keep(kv_.rows[i], kept_[i])) publish(i);
  }

 private:
  [[nodiscard]] std::span<std::int32_t> table_row(std::size_t i) {
    return std::span(table_).subspan(i * stride_, stride_);
  }
  void grow(std::size_t i, std::int64_t upto) {
    detail::ColumnTable& columns = columns_[i];
    released_.clear();
    columns.release(computed_[i], released_);
    if (!released_.empty()) states_.release(released_);
    fresh_.resize(static_cast<std::size_t>(columns.fresh_blocks(upto)));
    const std::int32_t before = columns.size();
    if (!fresh_.empty()) {
      expect(states_.allocate(fresh_));
      for (const BlockId block : fresh_) planner_.publication(0).forget(block);
    }
    columns.grow(upto, fresh_);
    if (!released_.empty() || columns.size() != before) std::ranges::copy(columns.columns(), table_row(i).begin());
  }
  void pass(std::span<const std::int32_t> scheduled, std::span<const std::int32_t> drafts,
            std::span<const std::int32_t> kept) {
    const BlockTable table{table_, static_cast<std::int64_t>(stride_), static_cast<std::int32_t>(stride_)};
    const AlignBatch batch{request_, computed_, scheduled, drafts};
    expect(planner_.pre_step(batch, {&table, 1}).skipped_parts == 0);
    before_.assign(planner_.plan(0).begin(), planner_.plan(0).end());
    batch_.resize(requests);
    for (std::size_t i = 0; i < requests; ++i)
      batch_[i] = {.start = computed_[i],
                   .tokens = scheduled[i],
                   .kv = kv_.rows[i].ids,
                   .slots = table_row(i),
                   .column = planner_.columns(0)[i],
                   .bias = accepted_bias(planner_.accepted(0)[i])};
    planner_.accept(request_, kept);
    expect(planner_.post_step(batch, {&table, 1}).skipped_parts == 0);
    after_ = planner_.plan(0);
  }
  void publish(std::size_t i) {
    const PromptHashes& hashes = kv_.rows[i].hashes;
    const auto boundary = std::ssize(hashes.keys);
    const BlockId block{columns_[i].columns()[static_cast<std::size_t>(boundary - 1)]};
    if (planner_.publication(0).publish(block, boundary * block_size))
      states_.register_hashes({&block, 1}, {&hashes.keys.back(), 1});
  }

  DecodeShape shape_;
  HashedRequests kv_;
  BlockPool states_;
  AlignPlanner planner_;
  std::vector<detail::ColumnTable> columns_;
  std::size_t stride_;
  std::vector<std::int32_t> table_;
  std::vector<std::int32_t> request_, computed_, scheduled_, drafts_, kept_;
  std::vector<Row> batch_;
  std::vector<SlotCopy> before_;
  CopyPlan after_;
  std::vector<BlockId> released_, fresh_;
};

}  // namespace

std::unique_ptr<DecodeWorkload> decode_by_hand(const DecodeShape& shape) {
  switch (shape.cache) {
    case DecodeCache::hash_slots:
      return std::make_unique<SlotsByHand>(shape);
    case DecodeCache::tree_slots:
      return std::make_unique<TreeByHand>(shape);
    default:
      return std::make_unique<AlignByHand>(shape);
  }
}

}  // namespace stateport::perf
