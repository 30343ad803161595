// SPDX-License-Identifier: Apache-2.0
#include <stateport/llamacpp/cache.hpp>

#include <stateport/backends/pinned_resource.hpp>
#include <stateport/backends/runtime.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/tiers/state_tiers.hpp>

#include "image_stores.hpp"
#include "self_test.hpp"
#include "sequence_images.hpp"
#include "sequences.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace stateport::llamacpp {
namespace {

using Clock = std::chrono::steady_clock;

llama_context* checked(llama_context* context, const CacheOptions& options) {
  require(context != nullptr, "context", std::string_view("null"), "is needed");
  require(options.sequences >= 1, "sequences", options.sequences, "must be at least 1");
  require(options.block_tokens >= 1, "block_tokens", options.block_tokens, "must be at least 1");
  require(options.checkpoint_tokens >= 0 && options.checkpoint_tokens % options.block_tokens == 0, "checkpoint_tokens",
          options.checkpoint_tokens, "must be whole blocks");
  require(options.state_share > 0 && options.state_share < 1, "state_share", options.state_share,
          "must lie between 0 and 1");
  const auto n_seq_max = static_cast<std::int64_t>(llama_n_seq_max(context));
  require(n_seq_max > options.sequences, "context.n_seq_max", n_seq_max, "must be one more than sequences, or larger");
  require(llama_n_ctx_seq(context) == llama_n_ctx(context), "context.kv_unified", 0, "must be set");
  require(std::cmp_greater_equal(llama_n_batch(context), options.block_tokens), "context.n_batch",
          llama_n_batch(context), "must be a block or more");
  llama_memory_t memory = llama_get_memory(context);
  const llama_model* model = llama_get_model(context);
  require(memory != nullptr && !llama_model_has_encoder(model) && !llama_model_is_diffusion(model), "context",
          std::string_view("a model"), "must be a decoder with memory");
  for (llama_seq_id sequence = 0; sequence < n_seq_max; ++sequence)
    require(llama_memory_seq_pos_max(memory, sequence) < 0, "context", std::string_view("a sequence"),
            "has tokens already");
  return context;
}

CacheOptions completed(const llama_context* context, CacheOptions options) {
  const auto cells = static_cast<std::int64_t>(llama_n_ctx(context));
  if (options.request_tokens == 0) options.request_tokens = cells / options.sequences;
  require(options.request_tokens > options.block_tokens && options.request_tokens <= cells / options.sequences,
          "request_tokens", options.request_tokens,
          "must be more than a block, and with all sequences at most context.n_ctx");
  return options;
}

RequestCacheOptions make_options(const CacheOptions& options, const ImageSizes& sizes) {
  const StateSpec state = ImageStore::spec(sizes.state), kv = ImageStore::spec(sizes.kv_block);
  const auto state_bytes = static_cast<std::int64_t>(state.slot_bytes());
  const auto kv_bytes = static_cast<std::int64_t>(kv.slot_bytes());
  const auto for_states = static_cast<std::int64_t>(static_cast<double>(options.memory_bytes) * options.state_share);
  const std::int64_t blocks = std::max<std::int64_t>(0, options.memory_bytes - for_states) / kv_bytes;
  const std::int64_t needed = (options.request_tokens + options.block_tokens - 1) / options.block_tokens;
  require(for_states >= state_bytes && blocks >= needed, "memory_bytes", options.memory_bytes,
          "must hold a state of " + std::to_string(state_bytes) + " bytes in its state_share, and " +
              std::to_string(needed) + " blocks of " + std::to_string(kv_bytes) + " bytes in the rest");
  SlotLayout layout{.layout_fingerprint = state.fingerprint(),
                    .checkpoints = static_cast<std::int32_t>(std::min<std::int64_t>(for_states / state_bytes, 1 << 20)),
                    .separate_checkpoints = true,
                    .scan_alignment_tokens = -1,
                    .placement = CheckpointPlacement::passes,
                    .tail_tokens = -1};  // chunk() stops at the last block's end: a tail would be one more stop
  RequestCacheOptions made{
      .index = CacheIndex::tree,
      .layout = layout,
      .max_requests = options.sequences,
      .max_request_tokens = options.request_tokens,
      .block_size_tokens = options.block_tokens,
      .kv_tokens = std::min(blocks, (std::int64_t{1} << 30) / options.block_tokens) * options.block_tokens,
      .eviction = EvictionOrder::hix,
      .memory = {.state_bytes = state_bytes,
                 .kv_bytes_per_token = std::max<std::int64_t>(1, kv_bytes / options.block_tokens)}};
  made.tiers = {.state_image_bytes = static_cast<std::int64_t>(ImageLayout(state, {}).image_bytes()),
                .kv_image_bytes = static_cast<std::int64_t>(ImageLayout(kv, {}).image_bytes()),
                .write_through = options.store != nullptr};
  if (!options.files.folder.empty()) made.tiers.file_bytes = static_cast<std::int64_t>(options.files.capacity_bytes);
  if (options.store != nullptr)
    made.tiers.remote_bytes = options.store_bytes == 0 ? 4 * options.memory_bytes : options.store_bytes;
  return made;
}

/// Objects of the store hold whole images.
SharedLayout whole(const StateSpec& spec) {
  const std::int64_t extent = spec.tensors()[0].shape[0];
  return {.layout = ModelLayout(spec, {{.axis = 0, .bands = {{.extent = extent}}}})};
}

/// All that images depend on, beside their sizes.
ModelId model_id(const llama_context* context, const llama_context_params& params, std::string_view weights) {
  const llama_model* model = llama_get_model(context);
  std::array<char, 256> name = {};
  llama_model_desc(model, name.data(), name.size());
  std::string text =
      "llama.cpp " + std::string(llama_version()) + ", sequences " + std::to_string(LLAMA_STATE_SEQ_VERSION);
  for (const std::string& part :
       {std::string(weights), std::string(name.data()), std::to_string(llama_model_n_params(model)),
        std::to_string(llama_model_size(model)), std::to_string(params.type_k), std::to_string(params.type_v),
        std::to_string(params.flash_attn_type), std::to_string(params.rope_scaling_type),
        std::to_string(params.rope_freq_base), std::to_string(params.rope_freq_scale),
        std::to_string(params.yarn_ext_factor), std::to_string(params.yarn_attn_factor),
        std::to_string(params.yarn_beta_fast), std::to_string(params.yarn_beta_slow),
        std::to_string(params.yarn_orig_ctx)})
    text += "\n" + std::to_string(part.size()) + ":" + part;
  return ModelId(text);
}

/// Adds the time until its end.
class Timed {
 public:
  explicit Timed(double& seconds) : seconds_(seconds) {}
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  ~Timed() { seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count(); }

 private:
  double& seconds_;
  Clock::time_point begin_ = Clock::now();
};

/// A batch of llama.cpp with room for one token of each row and position.
class Batch {
 public:
  explicit Batch(std::uint32_t tokens) : batch_(llama_batch_init(static_cast<std::int32_t>(tokens), 0, 1)) {}
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() { llama_batch_free(batch_); }

  void clear() noexcept { batch_.n_tokens = 0; }
  void add(llama_token token, std::int64_t position, llama_seq_id sequence, bool output) noexcept {
    const std::int32_t at = batch_.n_tokens++;
    batch_.token[at] = token;
    batch_.pos[at] = static_cast<llama_pos>(position);
    batch_.n_seq_id[at] = 1;
    batch_.seq_id[at][0] = sequence;
    batch_.logits[at] = output;
  }
  [[nodiscard]] const llama_batch& get() const noexcept { return batch_; }

 private:
  llama_batch batch_;
};

}  // namespace

class Cache::Impl {
 public:
  Impl(llama_context* context, const llama_context_params& params, std::string_view weights,
       const CacheOptions& options)
      : context_(checked(context, options)),
        options_(completed(context, options)),
        images_(context, options.sequences),
        sizes_(test_context(context, images_, options.block_tokens)),
        cache_(make_request_cache(make_options(options_, sizes_))),
        sequences_(options.sequences, options.block_tokens),
        states_(memory_, sizes_.state, checkpoint_slots(cache_->options()), stream_),
        kv_(memory_, sizes_.kv_block, kv_blocks(cache_->options()), stream_),
        batch_(llama_n_batch(context)) {
    if (cache_->tiers() == nullptr) return;
    StateTiersOptions tiers{
        .states = {&states_.store()}, .kv = &kv_.store(), .model = model_id(context, params, weights)};
    if (!options.files.folder.empty()) tiers.files = options.files;
    if (options.store != nullptr)
      tiers.remote = RemoteOptions{
          .store = options.store, .states = {whole(states_.store().spec())}, .kv = whole(kv_.store().spec())};
    mover_.emplace(memory_, tiers);
    if (mover_->files() == nullptr) return;
    for (const ImageKey& image : mover_->files()->keys())
      if (!cache_->tiers()->attach(Medium::file, image)) mover_->remove(stream_, {&image, 1});
  }

  std::optional<StartedRequest> start(const Prompt& prompt) {
    require(prompt.media.empty(), "media", prompt.media.size(), "are not supported");
    Prompt timed = prompt;
    if (timed.now_s == 0) timed.now_s = std::chrono::duration<double>(Clock::now() - begin_).count();
    auto started = cache_->start(timed);
    // A request that ended while it was loading keeps its number until the load has ended. While no other request runs,
    // no other call waits for it.
    for (; !started && mover_ && !sequences_.runs_any(); started = cache_->start(timed)) end_transfers();
    if (!started) return std::nullopt;
    move(started->transfers);
    const std::int32_t slot = cache_->state(started->request).target().value();
    Sequence& sequence = sequences_.take(slot, started->request, prompt);
    if (sequence.name_space != prompt.name_space) keep(sequence, 0);
    sequence.name_space = prompt.name_space;
    const auto held = static_cast<std::int64_t>(sequence.tokens.size());
    const bool goes_on =
        held < std::ssize(prompt.tokens) && common_tokens(sequence.tokens, prompt.tokens) == sequence.tokens.size();
    sequence.ready_tokens = goes_on ? held : 0;
    sequence.prompt_tokens = std::ssize(prompt.tokens);
    const std::int64_t last_block = (sequence.prompt_tokens - 1) / options_.block_tokens * options_.block_tokens;
    sequence.stops = {started->reused_tokens + started->lost_tokens, last_block, sequence.prompt_tokens};
    sequence.stops.insert(sequence.stops.end(), started->breakpoints.begin(), started->breakpoints.end());
    return StartedRequest{.request = started->request,
                          .sequence = sequence.id,
                          .reused_tokens = std::max(started->reused_tokens, sequence.ready_tokens),
                          .lost_tokens = started->lost_tokens,
                          .lost = started->lost,
                          .loads = started->load.has_value()};
  }

  bool is_loading(RequestId request) {
    static_cast<void>(sequences_.of(request));
    if (!mover_ || !cache_->tiers()->is_loading(request)) return false;
    end_transfers();
    return cache_->tiers()->is_loading(request);
  }

  /// The pass ends at the next stop of the sequence, and at checkpoint_tokens. The cache may know fewer tokens of a
  /// sequence that goes on, and counts its own stops from these.
  std::int64_t chunk(RequestId request, std::int64_t budget_tokens) {
    const Sequence& sequence = sequences_.of(request);
    const std::int64_t first = computed(request);
    std::int64_t tokens = cache_->chunk(request, budget_tokens).tokens;
    if (first >= sequence.prompt_tokens || tokens == 0) return tokens;
    tokens = budget_tokens;
    if (options_.checkpoint_tokens > 0)
      tokens = std::min(tokens, options_.checkpoint_tokens - first % options_.checkpoint_tokens);
    for (const std::int64_t stop : sequence.stops)
      if (stop > first) tokens = std::min(tokens, stop - first);
    return tokens;
  }

  const Pass& plan(std::span<const PassRow> rows) {
    std::int64_t tokens = 0;
    for (const PassRow& row : rows) {
      require(row.drafts == 0, "drafts", row.drafts, "are not supported");
      require(row.tokens >= 1, "tokens", row.tokens, "must be at least 1");
      tokens += row.tokens;
    }
    require(std::cmp_less_equal(tokens, llama_n_batch(context_)), "rows", tokens,
            "must have at most context.n_batch tokens together");
    // The cache knows fewer tokens of a sequence that goes on. Its row begins with these; the batch leaves them out.
    rows_.assign(rows.begin(), rows.end());
    for (PassRow& row : rows_)
      row.tokens += static_cast<std::int32_t>(computed(row.request) - cache_->computed(row.request));
    const PassPlan plan = cache_->plan(rows_);
    move(plan.transfers);
    for (const SlotId slot : plan.groups[0].clear) {
      Sequence& sequence = sequences_.of_slot(slot.value());
      if (!goes_on(plan, sequence)) keep(sequence, 0);
    }
    for (const SlotCopy& copy : plan.groups[0].copies) {
      Sequence& sequence = sequences_.of_slot(copy.dst_slot);
      if (!goes_on(plan, sequence)) restore(plan, sequence, copy.recurrent_src_slot);
    }
    fill(plan);
    return pass_;
  }

  void cancel() {
    cache_->cancel(pass_.pass);
    pass_ = {};
  }

  void commit(std::span<const std::int32_t> counts, std::span<const llama_token> sampled) {
    const PassCommit commit = cache_->commit(pass_.pass, counts, sampled);
    pass_ = {};
    move(commit.transfers);
    for (const RequestId request : in_pass_) save_kv(request);
    save_states(commit.groups[0].copies);
    if (mover_) end_transfers();
  }

  void end(RequestId request, RequestEnd how, const ReuseHint& hint) {
    Sequence& sequence = sequences_.of(request);
    const EndedRequest ended = cache_->end(request, how, hint);
    move(ended.transfers);
    save_states(ended.copies);
    std::erase(in_pass_, request);
    // A pass that was not committed has left further tokens, and a restore that failed KV without its state.
    const bool differs = images_.tokens(sequence.id) != std::ssize(sequence.tokens);
    if (how == RequestEnd::aborted || differs) keep(sequence, 0);
    sequence.request.reset();
    if (mover_) end_transfers();
  }

  void drain() {
    if (!mover_) return;
    CacheTiers& tiers = *cache_->tiers();
    const Medium slowest = mover_->files() != nullptr ? Medium::file : Medium::remote;
    for (std::int64_t written = -1; written < tiers.usage(slowest).bytes_written;) {
      written = tiers.usage(slowest).bytes_written;
      move(tiers.drain());
      while (tiers.transfers_under_way() > 0) end_transfers();
    }
  }

  [[nodiscard]] std::int64_t computed(RequestId request) {
    return std::max(cache_->computed(request), sequences_.of(request).ready_tokens);
  }
  [[nodiscard]] const RequestCache& cache() const noexcept { return *cache_; }
  [[nodiscard]] const ImageWork& work() const noexcept { return work_; }
  [[nodiscard]] TierUsage usage(Medium medium) const { return mover_ ? cache_->tiers()->usage(medium) : TierUsage{}; }
  [[nodiscard]] const ImageSizes& sizes() const noexcept { return sizes_; }

 private:
  void move(TransferPlan transfers) {
    if (mover_) mover_->execute(stream_, transfers);
  }
  void end_transfers() {
    std::array<TransferResult, 64> results;
    const std::size_t count = mover_->poll(stream_, results);
    move(cache_->tiers()->settle(std::span(results).first(count)).transfers);
    if (count == 0) std::this_thread::yield();
  }
  /// Images are written and read by this thread: copies of tiers must not be under way.
  void wait_for_copies() {
    if (mover_) stream_.synchronize();
  }

  void keep(Sequence& sequence, std::int64_t tokens) {
    sequence.tokens.resize(static_cast<std::size_t>(tokens));
    images_.cut(sequence.id, tokens);
  }

  [[nodiscard]] std::int32_t block_of(const KvRow& kv, std::int64_t first) const {
    return static_cast<std::int32_t>(kv.at(first) / options_.block_tokens);
  }

  static const RowPlan& row_of(const PassPlan& plan, const Sequence& sequence) {
    return *std::ranges::find(plan.rows, *sequence.request, &RowPlan::request);
  }
  /// The sequence has the first tokens of the pass, and the state after them: nothing is restored.
  [[nodiscard]] static bool goes_on(const PassPlan& plan, Sequence& sequence) {
    const RowPlan& row = row_of(plan, sequence);
    if (sequence.ready_tokens < row.start) sequence.ready_tokens = 0;
    sequence.saved_tokens = row.start;
    return sequence.ready_tokens > 0;
  }

  /// KV that the sequence lacks, then the state.
  void restore(const PassPlan& plan, Sequence& sequence, std::int32_t state_slot) {
    const Timed timed(work_.restore_s);
    wait_for_copies();
    const RowPlan* const row = &row_of(plan, sequence);
    const std::span<const llama_token> prefix =
        cache_->tokens(row->request).first(static_cast<std::size_t>(row->start));
    const std::int64_t block = options_.block_tokens;
    const auto common = static_cast<std::int64_t>(common_tokens(sequence.tokens, prefix)) / block * block;
    keep(sequence, common);
    for (std::int64_t first = common; first < row->start; first += block) {
      const std::int32_t slot = block_of(row->kv, first);
      kv_.verify(slot, prefix.first(static_cast<std::size_t>(first + block)), "KV");
      images_.load_kv(sequence.id, first, block, kv_.image(slot));
      ++work_.restored_blocks;
    }
    states_.verify(state_slot, prefix, "a state");
    images_.load_state(sequence.id, states_.image(state_slot));
    ++work_.restored_states;
    if (images_.tokens(sequence.id) != row->start)
      throw BackendError("llama_state_seq_set_data_ext", "a restored sequence has another length");
    sequence.tokens.assign(prefix.begin(), prefix.end());
  }

  void fill(const PassPlan& plan) {
    batch_.clear();
    outputs_.clear();
    in_pass_.clear();
    for (const RowPlan& row : plan.rows) {
      outputs_.push_back(-1);
      if (!row.room) continue;
      in_pass_.push_back(row.request);
      const std::span<const llama_token> tokens = cache_->tokens(row.request);
      const Sequence& sequence = sequences_.of(row.request);
      const std::int64_t end = row.start + row.tokens;
      const bool samples = end == std::ssize(tokens);
      for (std::int64_t at = std::max(row.start, sequence.ready_tokens); at < end; ++at)
        batch_.add(tokens[static_cast<std::size_t>(at)], at, sequence.id, samples && at + 1 == end);
      if (samples) outputs_.back() = batch_.get().n_tokens - 1;
    }
    pass_ = {.pass = plan.pass,
             .batch = batch_.get(),
             .rows = plan.rows,
             .outputs = outputs_,
             .rows_without_room = plan.rows_without_room};
  }

  /// Of blocks that have become full.
  void save_kv(RequestId request) {
    Sequence& sequence = sequences_.of(request);
    const std::int64_t computed = cache_->computed(request), block = options_.block_tokens;
    const std::span<const llama_token> tokens = cache_->tokens(request).first(static_cast<std::size_t>(computed));
    sequence.tokens.assign(tokens.begin(), tokens.end());
    sequence.ready_tokens = 0;
    if (computed / block * block == sequence.saved_tokens) return;
    const Timed timed(work_.save_s);
    wait_for_copies();
    const KvRow kv = cache_->kv(request);
    for (; sequence.saved_tokens + block <= computed; sequence.saved_tokens += block) {
      const std::int32_t slot = block_of(kv, sequence.saved_tokens);
      images_.save_kv(sequence.id, sequence.saved_tokens, block, kv_.image(slot));
      kv_.seal(slot, tokens.first(static_cast<std::size_t>(sequence.saved_tokens + block)));
      ++work_.saved_blocks;
    }
  }

  void save_states(CopyPlan copies) {
    if (copies.empty()) return;
    const Timed timed(work_.save_s);
    wait_for_copies();
    for (const SlotCopy& copy : copies) {
      const Sequence& sequence = sequences_.of_slot(copy.recurrent_src_slot);
      if (!std::cmp_equal(images_.tokens(sequence.id), sequence.tokens.size()))
        throw BackendError("llama_decode", "left a sequence of another length");
      images_.save_state(sequence.id, states_.image(copy.dst_slot));
      states_.seal(copy.dst_slot, sequence.tokens);
      ++work_.saved_states;
    }
  }

  llama_context* context_;
  CacheOptions options_;
  SequenceImages images_;
  ImageSizes sizes_;
  std::unique_ptr<RequestCache> cache_;
  Sequences sequences_;
  Runtime runtime_;
  Stream stream_ = Stream::default_stream();
  PinnedResource memory_;
  ImageStore states_;
  ImageStore kv_;
  std::optional<StateTiers> mover_;
  Batch batch_;
  Pass pass_;
  std::vector<PassRow> rows_;
  std::vector<std::int32_t> outputs_;
  std::vector<RequestId> in_pass_;  ///< rows with room whose requests run
  ImageWork work_;
  Clock::time_point begin_ = Clock::now();
};

Cache::Cache(llama_context* context, const llama_context_params& params, std::string_view weights,
             const CacheOptions& options)
    : impl_(std::make_unique<Impl>(context, params, weights, options)) {}
Cache::Cache(Cache&&) noexcept = default;
Cache& Cache::operator=(Cache&&) noexcept = default;
Cache::~Cache() = default;

std::optional<StartedRequest> Cache::start(const Prompt& prompt) {
  return impl_->start(prompt);
}
bool Cache::is_loading(RequestId request) {
  return impl_->is_loading(request);
}
std::int64_t Cache::chunk(RequestId request, std::int64_t budget_tokens) const {
  return impl_->chunk(request, budget_tokens);
}
const Pass& Cache::plan(std::span<const PassRow> rows) {
  return impl_->plan(rows);
}
void Cache::cancel() {
  impl_->cancel();
}
void Cache::commit(std::span<const std::int32_t> counts, std::span<const llama_token> sampled) {
  impl_->commit(counts, sampled);
}
void Cache::end(RequestId request, RequestEnd how, const ReuseHint& hint) {
  impl_->end(request, how, hint);
}
std::span<const llama_token> Cache::tokens(RequestId request) const {
  return impl_->cache().tokens(request);
}
std::int64_t Cache::computed(RequestId request) const {
  return impl_->computed(request);
}
void Cache::drain() {
  impl_->drain();
}
const RequestCache& Cache::decisions() const noexcept {
  return impl_->cache();
}
const ImageWork& Cache::image_work() const noexcept {
  return impl_->work();
}
TierUsage Cache::usage(Medium medium) const {
  return impl_->usage(medium);
}
std::size_t Cache::state_bytes() const noexcept {
  return impl_->sizes().state;
}
std::size_t Cache::kv_block_bytes() const noexcept {
  return impl_->sizes().kv_block;
}

}  // namespace stateport::llamacpp
