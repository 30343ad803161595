// SPDX-License-Identifier: Apache-2.0
#include "decode_workload.hpp"

#include <cstdlib>
#include <numeric>

namespace stateport::perf {

RequestCacheOptions DecodeShape::options() const {
  const std::int32_t longest = prompt_tokens + steps * (1 + drafts) + 8;
  RequestCacheOptions options{.index = cache == DecodeCache::tree_slots ? CacheIndex::tree : CacheIndex::hash,
                              .max_requests = requests,
                              .max_request_tokens = longest,
                              .drafts = drafts,
                              .block_size_tokens = block_size,
                              .kv_tokens = std::int64_t{requests} * (longest + 2 * block_size),
                              .hash = hash};
  if (cache == DecodeCache::hash_columns)
    options.layout = ColumnLayout{.groups = {{.block_size_tokens = block_size,
                                              .blocks = requests * (4 + drafts),
                                              .conv_window = 3 + drafts,
                                              .layout_fingerprint = 1}}};
  else
    options.layout =
        SlotLayout{.layout_fingerprint = 1, .checkpoints = 2 * requests, .decode_checkpoint_tokens = block_size};
  return options;
}

void DecodeShape::fill_prompt(std::span<Token> prompt, std::int32_t number) {
  std::iota(prompt.begin(), prompt.end(), number * 10000);
}

namespace {

class RequestCacheDecode final : public DecodeWorkload {
 public:
  explicit RequestCacheDecode(const DecodeShape& shape) : shape_(shape), cache_(make_request_cache(shape.options())) {}

  void start() override {
    for (const PassRow& row : rows_) cache_->finish(row.request);
    rows_.clear();
    counts_.assign(DecodeShape::requests, 1);
    sampled_.assign(DecodeShape::requests, 7);
    std::vector<Token> prompt(DecodeShape::prompt_tokens);
    for (std::int32_t i = 0; i < DecodeShape::requests; ++i) {
      DecodeShape::fill_prompt(prompt, ++prompts_);
      const auto started = cache_->start({.tokens = prompt});
      rows_.push_back({.request = started->request, .tokens = DecodeShape::prompt_tokens});
    }
    step();
    std::int32_t sum = 0;
    for (std::int32_t i = 0; i < DecodeShape::requests; ++i) {
      PassRow& row = rows_[static_cast<std::size_t>(i)];
      row = {.request = row.request, .tokens = 1 + shape_.drafts, .drafts = shape_.drafts};
      sum += counts_[static_cast<std::size_t>(i)] = shape_.kept(i);
    }
    sampled_.assign(static_cast<std::size_t>(sum), 7);
  }

  void step() override {
    const PassPlan plan = cache_->plan(rows_);
    if (plan.rows_without_room > 0) std::abort();
    static_cast<void>(cache_->commit(plan.pass, counts_, sampled_));
  }

 private:
  DecodeShape shape_;
  std::unique_ptr<RequestCache> cache_;
  std::int32_t prompts_ = 0;
  std::vector<PassRow> rows_;
  std::vector<std::int32_t> counts_;
  std::vector<Token> sampled_;
};

}  // namespace

std::unique_ptr<DecodeWorkload> decode_with_request_cache(const DecodeShape& shape) {
  return std::make_unique<RequestCacheDecode>(shape);
}

}  // namespace stateport::perf
