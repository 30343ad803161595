// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>
#include <stateport/tiers/file_tier.hpp>
#include <stateport/tiers/image.hpp>
#include <stateport/tiers/remote_store.hpp>

#include <llama.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

/// llama.cpp as an engine of stateport: prompts reuse the KV and the recurrent states of earlier prompts.
namespace stateport::llamacpp {

struct CacheOptions {
  /// Requests that run at a time. Each has a sequence of the context, from 0 on; the next one is the cache's own.
  std::int32_t sequences = 1;
  /// The largest number of tokens of one request, prompt and output together; 0: llama_n_ctx / sequences.
  std::int64_t request_tokens = 0;
  /// Host memory for cached KV and states, on every device. The context has memory of its own.
  std::int64_t memory_bytes = 0;
  /// The part of it that holds states; the rest holds KV, also that of running requests.
  double state_share = 0.5;
  /// Tokens of a block of KV. States are kept at the end of a block: a prompt whose beginning is known computes up to
  /// this many tokens twice.
  std::int32_t block_tokens = 16;
  /// A prompt also leaves a state at multiples of this number of tokens (whole blocks), for prompts that share no more
  /// than its beginning; 0: it does not.
  std::int64_t checkpoint_tokens = 512;
  /// Below that memory: files, which survive the process. An empty folder: none.
  FileTierOptions files;
  /// Below these: a store that processes and machines share. Every state goes there as soon as it is kept. Must outlive
  /// the cache, and serves no one else meanwhile. Null: none.
  RemoteStore* store = nullptr;
  /// The bytes of images in the store that the cache remembers; 0: four times memory_bytes.
  std::int64_t store_bytes = 0;
};

/// A request that starts.
struct StartedRequest {
  RequestId request;
  llama_seq_id sequence = 0;       ///< runs it
  std::int64_t reused_tokens = 0;  ///< need not be computed; with `loads` there may be more
  std::int64_t lost_tokens = 0;    ///< whose KV is known beyond these, and which are computed again
  std::optional<LostHit> lost;     ///< why
  bool loads = false;              ///< from files: is_loading() says how long
};

/// A pass to run: llama_decode(context, batch).
struct Pass {
  PassId pass = 0;
  llama_batch batch = {};
  std::span<const RowPlan> rows;  ///< begin with tokens that a sequence has and the cache does not
  /// [rows] The number by which llama_get_logits_ith() gives the logits of the row's last token; -1: the row has no
  /// room, or its prompt goes on.
  std::span<const std::int32_t> outputs;
  std::int32_t rows_without_room = 0;
};

/// Images that were saved and restored since the cache was made, and the time that it took.
struct ImageWork {
  std::int64_t saved_states = 0, saved_blocks = 0;
  std::int64_t restored_states = 0, restored_blocks = 0;
  double save_s = 0, restore_s = 0;
};

/// A RequestCache over a llama_context: calls of llama.cpp carry out its plans. Cached KV and states are images
/// in host memory, as llama_state_seq_get_data_ext() writes them, each with a checksum. A sequence keeps its tokens
/// when its request ends, until another one needs it: a prompt that continues them is not restored, and of one that
/// shares their beginning only the state is.
///
///     start ─► (chunk ─► plan ─► llama_decode ─► commit)* ─► end
///
/// Bad input throws InvalidArgument, a call at a wrong time InvalidState. A call of llama.cpp that fails throws
/// BackendError with its name: the request has to end as aborted. Not thread-safe: all calls come from the thread that
/// calls llama_decode. Nobody else may change the context's memory while the cache lives.
class Cache {
 public:
  /// `weights` names the model's weights; images of other weights, of another llama.cpp or of a context with other
  /// `params` are not used. `params`: those that the context was made with.
  ///
  /// Before it serves, the cache decodes some tokens, and tries whether a restored sequence goes on as the one whose
  /// images it is made of, bit for bit. Throws InvalidArgument for a context that fails this: states that grow (sliding
  /// windows, indexers), KV that does not; and for one whose memory is not empty or not unified (kv_unified), which has
  /// too few sequences (n_seq_max: one more than `sequences`) or cells (n_ctx), and for less memory than one request
  /// needs.
  Cache(llama_context* context, const llama_context_params& params, std::string_view weights,
        const CacheOptions& options);
  Cache(Cache&&) noexcept;
  Cache& operator=(Cache&&) noexcept;
  ~Cache();

  /// Looks the prompt up and takes a sequence: that of an ended request whose tokens begin like the prompt, if there is
  /// one. None: all sequences run; or others run, and one still loads for a request that has ended. Throws as
  /// RequestCache::start(), and for media.
  [[nodiscard]] std::optional<StartedRequest> start(const Prompt& prompt);
  /// Whether a load for the request is under way: chunk() answers 0 so long. Makes it go on.
  [[nodiscard]] bool is_loading(RequestId request);
  /// How many of the next `budget_tokens` tokens of the prompt, behind computed(), to run in one pass: up to the next
  /// position at which a state is kept. See RequestCache::chunk().
  [[nodiscard]] std::int64_t chunk(RequestId request, std::int64_t budget_tokens) const;
  /// Plans a pass, and restores the states and the KV that it begins with. Rows count their tokens behind computed().
  /// Valid until the next call of plan or commit. Throws as RequestCache::plan(), for drafts, and for more tokens than
  /// context.n_batch in all.
  [[nodiscard]] const Pass& plan(std::span<const PassRow> rows);
  /// llama_decode did not run the pass, and left the context's memory as it was (answers 1 and -1).
  void cancel();
  /// llama_decode ran the pass, and counts[i] tokens were sampled for row i: see RequestCache::commit(). Saves the KV
  /// of blocks that are full, and states.
  void commit(std::span<const std::int32_t> counts, std::span<const llama_token> sampled);
  /// The request ends. Its KV and its last state stay cached, unless it was aborted.
  void end(RequestId request, RequestEnd how, const ReuseHint& hint = {});

  /// Prompt and sampled tokens; valid until the next commit, or the end of the request.
  [[nodiscard]] std::span<const llama_token> tokens(RequestId request) const;
  /// Tokens that need not be computed any more: reused, loaded or committed.
  [[nodiscard]] std::int64_t computed(RequestId request) const;

  /// Writes all that is cached to files, without files to the store: before the process ends. Waits for them.
  void drain();
  /// Decisions, statistics and contents.
  [[nodiscard]] const RequestCache& decisions() const noexcept;
  [[nodiscard]] const ImageWork& image_work() const noexcept;
  /// Contents of the files and the work with them, and those of the store; all zero without them.
  [[nodiscard]] TierUsage files() const { return usage(Medium::file); }
  [[nodiscard]] TierUsage store() const { return usage(Medium::remote); }
  /// Of the image of one state, and of the KV of one block.
  [[nodiscard]] std::size_t state_bytes() const noexcept;
  [[nodiscard]] std::size_t kv_block_bytes() const noexcept;

 private:
  class Impl;
  [[nodiscard]] TierUsage usage(Medium medium) const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stateport::llamacpp
