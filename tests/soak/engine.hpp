// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "arena_moves.hpp"
#include "checked_states.hpp"
#include "mark_world.hpp"
#include "movers.hpp"
#include "random_numbers.hpp"
#include "workload.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace stateport::soak {

/// Totals of an engine. Rates are differences of two of these.
struct Figures {
  std::int64_t requests = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t hit_tokens = 0;     ///< on the device and below
  std::int64_t loaded_tokens = 0;  ///< below the device
  std::int64_t loads = 0;          ///< that brought something
  std::int64_t failed_loads = 0;
  std::int64_t passes_ahead = 0;
  std::int64_t cancelled_passes = 0;
  std::int64_t refused_calls = 0;
  std::int64_t preempted = 0;
  std::int64_t aborted = 0;
  std::int64_t resets = 0;
  std::int64_t epochs = 0;  ///< that began while requests ran
  std::int64_t forks = 0;
  std::int64_t kv_moves = 0;      ///< of drafts that a tree had elsewhere
  std::int64_t memory_moves = 0;  ///< of arenas
  std::int64_t restarts = 0;
  std::int64_t found_images = 0;  ///< in files, by engines that started
  std::int64_t checks = 0;        ///< of checkpoints that were read
  std::int64_t withdrawn = 0;     ///< checkpoints that were called wrong

  void add(const Figures& other);
};

/// Mistakes on purpose, to show that they are noticed.
enum class Planted : std::uint8_t {
  nothing,
  events,  ///< the engine keeps the events of the caches for ever: memory grows
  state,   ///< a copy of a state does not happen now and then
  slot,    ///< a request is never ended
  move,    ///< the KV of drafts that a tree had elsewhere does not move
  write,   ///< a checkpoint is written to now and then, where checkpoints are checked
  pages    ///< each request maps some and never unmaps them: memory grows outside the heap
};

/// How an engine lives. All of it is drawn from one sequence of random numbers.
struct EngineSetup {
  std::string name;
  RequestCacheOptions options;
  std::int64_t requests_of_life = 0;   ///< until a restart over its files; 0: it never restarts
  std::int64_t requests_to_reset = 0;  ///< 0: never
  std::int64_t requests_to_epoch = 0;  ///< 0: never
  Planted planted = Planted::nothing;
};

/// An engine that does everything that RequestCache allows, in random order. Throws Violation for everything wrong that
/// it finds.
class Engine {
 public:
  using MakeMover = std::function<std::unique_ptr<Mover>(MarkWorld&)>;
  using Tokens = Workload::Tokens;

  Engine(test::Random& random, Workload& workload, EngineSetup setup, MakeMover make_mover);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void step();
  /// Ends all requests and waits for all transfers. Then the tiers hold the images that the cache lists.
  void rest();
  void check_invariants() const;
  [[nodiscard]] Figures figures() const;
  [[nodiscard]] const std::string& name() const noexcept { return setup_.name; }

 private:
  struct Live {
    Workload::Request request;
    Tokens tokens;            ///< with those that the host has not read back
    std::vector<Mark> marks;  ///< after 0, 1, 2 … of them
    std::size_t read_back = 0;
    std::int64_t prompt = 0;
    std::optional<std::int64_t> loading_tokens;  ///< 0: the remote tier was asked first
    std::int64_t reused_tokens = 0;
    bool scheduled = false;     ///< it could run once
    std::int64_t fork_at = -1;  ///< of a fork: its computed tokens at first
  };
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
  };
  struct Batch {
    PassId pass = 0;
    bool ready = false;
    bool has_parents = false;
    std::vector<RunRow> rows;
  };
  struct StoredHash {
    std::size_t operator()(const CacheEvent& event) const noexcept;
  };
  struct SameContent {
    bool operator()(const CacheEvent& a, const CacheEvent& b) const noexcept;
  };

  /// Executes an answer of the cache that has these transfers alone.
  void take(TransferPlan transfers);
  void check_more();
  void open();
  void close();
  void restart();
  void reset();
  void change_weights();
  [[nodiscard]] bool may_begin() const { return !planned_ || !planned_->ready; }
  [[nodiscard]] RequestId pick();
  [[nodiscard]] ReuseHint random_hint(std::size_t conversation);
  void hold(const Prompt& prompt);
  void start();
  void end_some();
  void fork_some();
  void end(RequestId id, RequestEnd how);
  [[nodiscard]] std::vector<PassRow> next_rows();
  void plan();
  void cancel();
  void run();
  void run_rows();
  void run_row(std::size_t index, RunRow& row);
  void run_tree(std::size_t index, RunRow& row);
  void commit();
  void check_states(const Batch& batch) const;
  void settle(bool all);
  void drain();
  void follow_loads();
  void follow_events();
  void check_rest() const;
  void refused();
  void call_wrongly(std::int64_t which);

  test::Random& random_;
  Workload& workload_;
  EngineSetup setup_;
  MakeMover make_mover_;
  Figures figures_;  ///< but for stats() of the cache that there is
  std::unique_ptr<MarkWorld> world_;
  std::unique_ptr<Mover> mover_;  ///< uses the world
  std::unique_ptr<RequestCache> cache_;
  std::optional<CheckedStates> checked_;
  std::optional<ArenaMoves> arena_;
  std::map<RequestId, Live> running_;
  std::optional<Batch> pass_;     ///< that ran and is not read back
  std::optional<Batch> planned_;  ///< the next one
  bool second_ = false;           ///< it ran, too
  bool starved_ = false;          ///< a row found no room
  PassPlan plan_;
  double now_s_ = 0;
  std::uint64_t sequence_ = 0;
  std::int64_t next_restart_ = 0;
  std::int64_t next_reset_ = 0;
  std::int64_t next_epoch_ = 0;
  std::int64_t steps_without_start_ = 0;
  std::chrono::steady_clock::time_point waits_since_;
  std::vector<TransferResult> results_;
  std::unordered_set<CacheEvent, StoredHash, SameContent> stored_;  ///< contents that events announced
  std::vector<CacheEvent> kept_;                                    ///< with Planted::events
};

}  // namespace stateport::soak
