// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "arena_world.hpp"
#include "combination.hpp"
#include "marked_memory.hpp"
#include "random.hpp"
#include "random_counts.hpp"
#include "random_traffic.hpp"
#include "state_world.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace stateport::test {

/// The kinds of images that random tiers keep below the device.
enum class Below : std::uint8_t { nothing, tiers, states_alone };

/// Two first blocks of four tokens with one 63-bit key under xxh3_128, and different digests. They were found by
/// following the key of a block to the block that it numbers, and so on, some 2^32 times (Pollard's rho).
inline constexpr std::array<std::array<Token, 4>, 2> one_key = {
    {{1977724, 1278635, 517372, 1}, {1596476, 103655, 356537, 1}}};

/// The name of a tenant.
[[nodiscard]] inline const std::string& salted() {
  static const std::string long_name(1500, 'n');
  return long_name;
}

/// Options of small caches of all kinds.
[[nodiscard]] RequestCacheOptions random_options(Random& random, Combination index);
/// Tiers for them, of a few images.
[[nodiscard]] TierOptions random_tiers(Random& random, const RequestCacheOptions& options);

/// An engine that does everything that RequestCache allows, in random order, over a StateWorld. Transfers between the
/// device and the tiers end late, in any order, and some fail.
class RandomEngine : public RandomCounts {
 public:
  using Tokens = StateWorld::Tokens;

  using MakeCache = std::function<std::unique_ptr<RequestCache>(const RequestCacheOptions&)>;

  /// `keeps_kv`: it keeps KV elsewhere, and tiers hold states alone.
  RandomEngine(Random& random, const RequestCacheOptions& options, bool keeps_kv = false,
               const MakeCache& make_cache = make_request_cache);

  /// Shares its remote tier and the prompts that it serves, from now on.
  void join(const RandomEngine& other);
  /// Forgets what the other one has forgotten.
  void adopt(const RandomEngine& other);
  /// Two tenants use this memory from now on, too, often with equal prompts.
  void mark(MarkedMemory& memory) noexcept {
    marked_ = &memory;
    if (arena_) arena_->mark(memory);
  }
  void step();
  /// Ends everything and forgets it.
  void finish();

  struct Habits {
    bool changes_weights = false;  ///< of all requests or of some tenants'
    bool crowds = false;           ///< requests with common prefixes come at once and run seldom
    bool forks = false;
    bool trees = false;    ///< in slots, of drafts
    bool damages = false;  ///< somebody writes to checkpoints; with RequestCacheOptions::integrity
  };
  Habits habits;
  [[nodiscard]] const ArenaWorld* arena() const noexcept { return arena_ ? &*arena_ : nullptr; }

 private:
  /// The names of a prompt. The world sees a prompt with other names as other tokens.
  struct Names {
    int tenant = 0;              ///< 0: none
    std::int64_t media_at = -1;  ///< -1: there is none
    int weights = 0;             ///< version of the weights with which the request began
    /// Of two, by their salts.
    [[nodiscard]] int salted() const noexcept { return tenant == 1 ? 1 : 0; }
  };
  /// An epoch, and of each engine and each choice of names the number of its last forget().
  using Version = std::pair<std::uint64_t, std::map<std::pair<const RandomEngine*, int>, std::int64_t>>;
  struct Old {
    Tokens tokens;
    Names names;
  };
  struct Live {
    Tokens tokens;  ///< with those that the host has not read back
    Names names;
    std::size_t read_back = 0;
    std::int64_t prompt = 0;
    std::optional<std::int64_t> loading_tokens;  ///< 0: the remote tier was asked first
    std::int64_t reused_tokens = 0;
    std::int64_t lost_tokens = 0;     ///< of the start, or of the look-up that replaced its answer
    std::vector<std::int64_t> named;  ///< on the grid of states
    bool begun = false;               ///< a pass was committed, or a prefix inserted
    bool waits = false;               ///< for another request
    bool is_fork = false;
    RequestId point;  ///< of a fork
    [[nodiscard]] bool waits_for(RequestId other) const { return is_fork && !begun && point == other; }
    std::int64_t waited_commits = 0;
  };
  class Prefixes;
  class Checks;
  struct RunRow {
    RequestId request;
    std::int32_t drafts = 0;
    std::int32_t tokens = 0;
    bool room = false;
    bool live = true;
    std::size_t sampled_at = 0;
    std::int32_t sampled = 0;
    std::vector<std::int32_t> parents;  ///< of its drafts, if they are a tree
    std::int32_t step = 0;              ///< the last one that is kept
    std::int64_t computed = 0;          ///< before its commit
  };
  struct Batch {
    PassId pass = 0;
    bool ready = false;
    std::vector<RunRow> rows;
    bool has_parents = false;
  };

  /// A plan has to be enqueued before another request starts, or a settle() begins a load.
  [[nodiscard]] bool may_begin() const { return !planned_ || !planned_->ready; }
  void check_usage() const;
  void check_tiers() const;
  RequestId pick();
  void start();
  [[nodiscard]] std::optional<StartedRequest> start(const Old& wanted, PromptSearch search,
                                                    std::span<const std::int64_t> named);
  void check_named(const PassCommit& commit, const std::vector<RunRow>& rows, const CacheStats& before);
  void hit_named(const RunRow& row, std::int64_t at);
  [[nodiscard]] Old random_prompt();
  [[nodiscard]] static Tokens seen(const Live& live, std::int64_t first, std::int64_t end);
  [[nodiscard]] static Tokens seen(const Names& names, std::int64_t first, Tokens tokens);
  [[nodiscard]] int weights_of(int tenant);
  void forget();
  void check_stale(bool forgot_all);
  void end(RequestId id);
  void check_places(RequestId id);
  void refresh();
  void note_wait(const PrefixWait& wait, Live& live);
  void follow_waits(bool committed);
  void insert();
  void fork();
  void plan();
  void take(const PassPlan& plan);
  void cancel();
  void run();
  void run_rows();
  void commit();
  void begin_rest();
  /// `more_work`: the answer has some beside the transfers, after which end_checks() follows.
  void begin(TransferPlan transfers, bool more_work = false);
  void settle(std::size_t most);
  void follow_loads();
  void follow_events();

  Random& random_;
  RequestCacheOptions options_;
  StateWorld world_;
  std::unique_ptr<RequestCache> cache_;
  std::map<RequestId, Live> running_;
  std::shared_ptr<std::vector<Old>> old_ = std::make_shared<std::vector<Old>>();
  std::optional<Batch> pass_;     ///< that ran and is not read back
  std::optional<Batch> planned_;  ///< the next one
  bool second_ = false;           ///< it ran, too
  PassPlan plan_;
  double now_s_ = 0;
  /// Versions of weights that there were; their index is the number of a version. Epochs are the same for all engines,
  /// and what one has forgotten for those that adopted it.
  std::shared_ptr<std::vector<Version>> versions_ = std::make_shared<std::vector<Version>>(1);
  std::array<Version, 3> version_ = {};  ///< by tenant
  std::uint64_t sequence_ = 0;
  int fail_per_cent_ = 0;  ///< of transfers
  MarkedMemory* marked_ = nullptr;
  std::map<RequestId, int> tenants_;  ///< by request; ended requests stay
  std::vector<Transfer> under_way_;
  std::shared_ptr<Prefixes> prefixes_;
  std::optional<ArenaWorld> arena_;
  std::shared_ptr<Checks> checks_;
  RandomTraffic traffic_;
  std::set<std::tuple<Medium, CacheContent, std::int32_t, std::array<std::uint64_t, 2>>> stored_;
};

/// The pins and prefetches of a RandomEngine, and all that must hold for them.
class RandomEngine::Prefixes {
 public:
  explicit Prefixes(RandomEngine& engine) : engine_(engine), cache_(*engine.cache_), random_(engine.random_) {}

  /// At a later time than all prompts before. Valid until the next call.
  [[nodiscard]] Prompt prompt_of(const Old& wanted);
  /// Some random calls.
  void step();
  /// The time of the cache went on.
  void end_leases();
  /// Contents were forgotten. True: prefetches are under way.
  [[nodiscard]] bool forget();
  /// The state after these tokens was withdrawn.
  void withdraw(const Tokens& tokens);
  /// Transfers have ended.
  void follow();
  /// Ends most pins.
  void end_most();
  /// No transfer is under way. True: there are pins.
  [[nodiscard]] bool finish();
  /// The cache was reset.
  void clear();

 private:
  struct Pinned {
    PinId pin = 0;
    Old prefix;
    double ends_s = 0;  ///< 0: never
    std::int64_t tokens = 0;
  };
  struct Prefetching {
    PrefetchId prefetch = 0;
    Old prompt;
    std::int64_t cached_tokens = 0;
  };

  [[nodiscard]] bool has_twin(const Tokens& tokens) const;
  void pin();
  void unpin(std::size_t at);
  void hit_pinned();
  void prefetch();
  void check() const;

  RandomEngine& engine_;
  RequestCache& cache_;
  Random& random_;
  std::vector<Pinned> pins_;
  std::vector<Prefetching> prefetches_;
  std::array<MediaKey, 2> media_;  ///< of the last prompt
};

/// The checks of the checkpoints of a RandomEngine, and somebody who writes to some of them.
class RandomEngine::Checks {
 public:
  explicit Checks(RandomEngine& engine) : engine_(engine), world_(engine.world_) {}

  /// Of the answer of the last call: what transfers store is checked before all else.
  void begin();
  void loads(const Transfer& load) { loaded_.insert({load.image.group, SlotId{load.place}}); }
  /// The work of the answer is done.
  void end();
  /// A pass that reads a wrong state does not run, and its readers start again.
  void end_readers();
  /// Somebody writes to a checkpoint that no running request works in. No pass is outstanding: it may have written a
  /// state that is not published yet.
  void damage();
  /// Nobody has written to the checkpoint that the request, which has not run yet, continues from.
  [[nodiscard]] bool has_intact_hit(RequestId id) const;

 private:
  struct Published {
    StateCheck check;
    StateWorld::Slot state;
  };
  using Place = std::pair<std::int32_t, SlotId>;  ///< group and slot

  [[nodiscard]] std::optional<StateFault::Kind> fault_of(const StateCheck& check) const;
  void check(const StateCheck& check);
  [[nodiscard]] bool is_worked_in(const StateCheck& check) const;

  RandomEngine& engine_;
  StateWorld& world_;
  std::vector<StateCheck> begun_;         ///< of the answer that is being carried out
  std::vector<StateFault> faults_;        ///< that the cache has not heard of
  std::set<RequestId> readers_;           ///< of wrong states, in the pass that is planned
  std::map<Place, Published> published_;  ///< the last one of each place
  std::set<Place> loaded_;                ///< that loads write, or have written last
  std::set<std::uint64_t> damaged_;       ///< contents
};

/// Totals over all random engines.
struct RandomRuns : RandomCounts {
  std::uint64_t seeds = 0;

  /// Ends what the engine serves, and counts what it did.
  void add(RandomEngine& engine) {
    engine.finish();
    *this += engine;
  }
};

}  // namespace stateport::test
