// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/block_hash.hpp>
#include <stateport/core/serve/cache_event.hpp>
#include <stateport/core/tier/transfer_plan.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace stateport {

struct RouterIndexOptions {
  std::int32_t workers_max = 64;       ///< workers are numbered from 0 to workers_max - 1; at most 65,536
  std::size_t prefixes_max = 1 << 20;  ///< different prefixes that are remembered at a time; 1 to 2^31
  std::size_t blocks_max = 1 << 14;    ///< find() looks at the first of a prompt; 1 to 2^24
  std::int32_t state_groups = 1;       ///< groups whose states a worker needs; 0: KV alone can be reused. At most 15
};

/// The part of a prompt that one worker can reuse.
struct RouterReach {
  std::int32_t worker = 0;
  /// blocks[m]: blocks of the longest prefix that can be reused without a medium slower than m. Never falls with m.
  std::array<std::int32_t, medium_count> blocks = {};

  /// With all media.
  [[nodiscard]] constexpr std::int32_t longest() const noexcept { return blocks.back(); }
  /// The slowest medium that the longest prefix needs.
  [[nodiscard]] constexpr Medium medium() const noexcept {
    std::size_t at = 0;
    while (blocks[at] < longest()) ++at;
    return static_cast<Medium>(at);
  }
  friend constexpr bool operator==(const RouterReach&, const RouterReach&) noexcept = default;
};

/// The index of a router: the contents of the caches of many workers, by their events, and how much of a prompt each
/// worker can reuse. A prefix can be reused up to a block if the states of all groups after that block are there, and
/// the KV of that block and of all blocks before it. Each of these may lie in any medium.
///
///     join ──► hear, hear, … ──► find
///                 └── a number is missing ──► unknown ── the missing ones, or `cleared` ──► known again
///
/// Events of a worker have numbers without gaps. After a gap the index takes no events of the worker until the missing
/// ones come, and find() leaves the worker out. Numbers that were heard before are ignored, so a replay may begin too
/// early. `cleared` removes all contents of the worker, and all numbers before it are missed no longer.
///
/// Memory: construction reserves address space for all of the options: 24 bytes for each of prefixes_max, 32 *
/// (1 + state_groups) for each of them and 64 workers, and 32 for each of blocks_max and 64 workers. A table of 64 to
/// 128 bytes for each of prefixes_max (64 for a power of two) uses its memory at once. No later call allocates. When
/// prefixes_max are remembered, others are refused and counted: the answers are too short then, never too long. Not
/// thread-safe.
class RouterIndex {
 public:
  /// Throws InvalidArgument for numbers beyond those of RouterIndexOptions.
  explicit RouterIndex(const RouterIndexOptions& options);
  RouterIndex(RouterIndex&&) noexcept;
  RouterIndex& operator=(RouterIndex&&) noexcept;
  ~RouterIndex();

  /// A worker comes, with an empty cache or one whose earlier events are not known: `next_sequence` is the number of
  /// the first event to be heard. A worker that is there already begins anew. O(prefixes) then, else O(1). Throws
  /// InvalidArgument for a worker that is not from 0 to workers_max - 1, as all calls do.
  void join(std::int32_t worker, std::uint64_t next_sequence = 1);
  /// A worker is gone: find() answers it no more, and its contents are forgotten. Nothing happens for a worker that has
  /// not joined. O(prefixes).
  void leave(std::int32_t worker);

  /// Takes events as they come from RequestCache::take_events, each with its number. Returns whether the worker is
  /// known. O(events), and O(prefixes) for each `cleared`. Throws InvalidArgument, and has changed nothing, for a
  /// worker that has not joined and for states of a group that the options do not count.
  bool hear(std::int32_t worker, std::span<const CacheEvent> events);
  /// The same for a message that has a number itself; CacheEvent::sequence has no meaning.
  bool hear(std::int32_t worker, std::uint64_t sequence, std::span<const CacheEvent> events);
  /// False: the worker has not joined, or events are missing.
  [[nodiscard]] bool is_known(std::int32_t worker) const;
  /// The number from which on a replay is needed: of the first event that was not heard. 0 for a worker that has not
  /// joined.
  [[nodiscard]] std::uint64_t next_sequence(std::int32_t worker) const;

  /// For each known worker that can reuse a part of a prompt with these blocks, how much; in the order of workers.
  /// Valid until the next call. O(blocks * workers_max / 64 + workers that match).
  [[nodiscard]] std::span<const RouterReach> find(std::span<const PrefixHash> blocks);

  /// That are remembered.
  [[nodiscard]] std::size_t prefixes() const noexcept;
  /// Stored contents that found no room, since construction.
  [[nodiscard]] std::uint64_t refused() const noexcept;
  /// Throws std::logic_error naming the first violation. O(prefixes_max).
  void check_invariants() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stateport
