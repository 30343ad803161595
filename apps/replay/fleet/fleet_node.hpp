// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "caches/cache.hpp"
#include "caches/schedule_options.hpp"
#include "containers/flat_map.hpp"
#include "fleet/crowd.hpp"
#include "fleet/fleet_clock.hpp"
#include "fleet/link.hpp"
#include "fleet/remote_directory.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

namespace stateport::replay {

/// The setup that all nodes of a fleet share.
struct NodeSetup {
  RequestCacheOptions cache;           ///< as of request_cache_options(), whose bytes and tokens it counts in
  std::int64_t block_size_tokens = 0;  ///< of the workload
  std::int64_t state_bytes = 0;        ///< of a checkpoint
  std::int64_t kv_bytes = 0;           ///< of a block
  TierSpeeds speeds;                   ///< of prompts, > 0, and of loads, where 0 takes no time; remote: of the link
  bool keeps_files = false;            ///< files outlive a failure
  ScheduleOptions schedule = {.concurrency = 1};
};

/// Totals of a node, over all its lives.
struct NodeCounts {
  std::int64_t requests = 0;  ///< that were served
  std::int64_t input_tokens = 0;
  std::int64_t hit_tokens = 0;    ///< as its caches count: with requests that it began and did not end
  std::int64_t link_bytes = 0;    ///< both directions
  std::int64_t stored_bytes = 0;  ///< that the remote store did not have before
  std::int64_t stored_again = 0;  ///< images that another node had brought there first: their bytes came for nothing
  std::int64_t read_bytes = 0;    ///< of loads from the remote store that ended well
  std::int64_t asked_images = 0;
  std::int64_t found_images = 0;
  std::int64_t lost_images = 0;  ///< that a load from the remote store did not find any more
  std::int64_t failures = 0;
  std::int64_t awaited_tokens = 0;  ///< of the hits, those that other requests computed while a request waited for them
  double link_busy_s = 0;
  std::array<TierUsage, medium_count> tiers = {};  ///< counters; contents are of the last life
  std::int64_t evicted_states = 0;
};

/// A request that a node has computed.
struct ServedPrompt {
  std::size_t request = 0;
  std::int64_t device_hit_tokens = 0;  ///< up to the state that the device had, at first or when it was looked up last
  std::int64_t loaded_tokens = 0;      ///< beyond these, that a load brought or another request computed meanwhile
  Medium medium = Medium::device;      ///< the slowest that something was loaded from
  std::optional<LostHit> lost;         ///< as the request began
  bool load_failed = false;            ///< something was loaded, and did not arrive
  double waited_s = 0;                 ///< for finds and loads

  [[nodiscard]] std::int64_t hit_tokens() const noexcept { return device_hit_tokens + loaded_tokens; }
};

/// One machine: a cache, and a queue of prompts. It looks a prompt up when it admits it, and has as many in flight as
/// the schedule says. One pass after the other computes their prompts, first of those that came first, and takes the
/// time of its tokens. A prompt is done when its last pass ends. Of one at a time each prompt is one pass, as of a
/// ServedCache. Transfers of the cache take time:
///
///     loads           bytes / bandwidth of the tier, one after the other in each
/// remote tier     see Link; find: one latency. An image that the store has is not sent again
///     other moves     no time, and no bandwidth
///
/// A load from the remote store finds nothing if the image is gone when it begins, or when it ends.
class FleetNode {
 public:
  /// The arguments must outlive it. Throws as make_request_cache.
  FleetNode(const NodeSetup& setup, const Crowd& crowd, std::uint32_t number, FleetClock& clock,
            RemoteDirectory& remote);

  [[nodiscard]] bool is_up() const noexcept { return cache_ != nullptr; }
  /// Events that were set in another life do not concern it.
  [[nodiscard]] std::uint32_t life() const noexcept { return life_; }
  void add(double now_s, std::size_t request);
  void transfer_ended(double now_s, TransferId transfer);
  /// The pass that runs is done; the next one begins. Returns the prompts that are done, the oldest first.
  std::vector<ServedPrompt> pass_ended(double now_s);
  /// Loses all but the files. Returns the requests that it did not serve, the oldest first.
  std::vector<std::size_t> fail();
  /// Begins again, with an empty cache but for files.
  void restart(double now_s);

  /// Appends the events of the cache since the last call. Precondition: the cache keeps events.
  void take_events(std::vector<CacheEvent>& events);
  [[nodiscard]] NodeCounts counts() const;
  /// Throws std::logic_error naming the first broken invariant.
  void check_invariants() const;

 private:
  /// A request that is admitted.
  struct Serving {
    RequestId request;          ///< none: the prompt is longer than the cache, and passes it by
    std::int64_t tokens = 0;    ///< of the prompt, as the cache sees them
    std::int64_t computed = 0;  ///< of these
    double admitted_s = 0;
    bool loading = false;            ///< waits for finds and loads
    bool scheduled = false;          ///< a pass of it was planned
    std::int32_t loads = 0;          ///< transfers under way
    Medium medium = Medium::device;  ///< of the last load, the slowest
    ServedPrompt result;
  };
  /// Of the pass that runs.
  struct Row {
    std::size_t serving = 0;
    std::int64_t tokens = 0;
  };

  void admit(double now_s);
  void start(double now_s, std::size_t index);
  void end_load(double now_s, Serving& serving);
  void look_up_again(Serving& serving);
  void schedule();
  void run(double now_s);
  [[nodiscard]] bool plan(double now_s);
  void finish(double now_s, const Serving& serving);
  [[nodiscard]] double pass_tokens() const;
  void move(double now_s, TransferPlan transfers);
  void begin(double now_s, TransferPlan transfers);
  [[nodiscard]] TransferPlan rest();
  [[nodiscard]] TransferPlan settle();
  void carry_out(double now_s, const Transfer& transfer);
  void note_file(const Transfer& transfer, bool there);
  [[nodiscard]] double arrival_s(double now_s, const Transfer& transfer);
  [[nodiscard]] TransferStatus status_of(const Transfer& transfer);
  [[nodiscard]] std::int64_t bytes_of(const ImageKey& image) const noexcept {
    return image.content == CacheContent::state ? setup_.state_bytes : setup_.kv_bytes;
  }
  /// Of the model, for those of whole blocks as the cache sees them.
  [[nodiscard]] std::int64_t real_tokens(std::int64_t seen) const noexcept {
    return seen / tokens_per_block * setup_.block_size_tokens;
  }
  /// Of the model, in the first `seen` tokens of a prompt.
  [[nodiscard]] double prompt_tokens(const Serving& serving, std::int64_t seen) const;
  void count_life();

  const NodeSetup& setup_;
  const Crowd& crowd_;
  std::uint32_t number_;
  FleetClock& clock_;
  RemoteDirectory& remote_;
  std::unique_ptr<RequestCache> cache_;  ///< nullptr: down
  Link link_;
  Link host_;
  Link files_;
  std::uint32_t life_ = 0;
  std::deque<std::size_t> waiting_;
  std::vector<Serving> serving_;  ///< the oldest first
  std::vector<Row> rows_;         ///< of the pass that runs; empty: none does
  PassId pass_ = 0;               ///< without rows in the cache: 0
  double cache_now_s_ = 0;
  FlatMap<TransferId, Transfer> under_way_;
  FlatMap<ImageKey, std::uint64_t, ImageKeyHash> kept_files_;  ///< with the order in which they were written
  std::uint64_t written_files_ = 0;
  NodeCounts counts_;

  // Of one call.
  std::vector<Token> tokens_;
  std::vector<PassRow> batch_;
  std::vector<TransferResult> answers_;
};

}  // namespace stateport::replay
