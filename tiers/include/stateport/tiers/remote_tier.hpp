// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/memory_resource.hpp>
#include <stateport/core/serve/cache_epochs.hpp>
#include <stateport/core/tier/transfer_plan.hpp>
#include <stateport/tiers/completion.hpp>
#include <stateport/tiers/host_tier.hpp>
#include <stateport/tiers/object_set.hpp>
#include <stateport/tiers/remote_options.hpp>
#include <stateport/tiers/remote_store.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace stateport {

struct RemoteTierStatistics {
  std::uint64_t refused_writes = 0;  ///< requests that were not accepted: the store's queue was full
  std::uint64_t refused_reads = 0;
  std::uint64_t refused_finds = 0;
  std::uint64_t written_bytes = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t removed_objects = 0;  ///< whose content did not fit their name; removed from the store
  double write_seconds = 0;           ///< sums over requests that are done, from acceptance to answer
  double read_seconds = 0;
  /// Ended requests by their answer, indexed by TransferStatus.
  std::array<std::uint64_t, transfer_status_count> write_answers = {};
  std::array<std::uint64_t, transfer_status_count> read_answers = {};
  std::array<std::uint64_t, transfer_status_count> find_answers = {};
};

/// Checkpoints in a store that many machines share, as sets of objects that do not depend on the topology of who wrote
/// them. Nothing is decided here; capacity and eviction are the store's own.
///
/// Lanes of the store carry requests out, several lanes one request, and seal and verify objects. With a store that
/// works in poll() this happens in the tier's poll(). poll() answers each request once. The limits of the store's queue
/// bound the requests under way. No call waits for the store but the destructor. Any thread may call anything at any
/// time.
///
/// Verified. A read is answered `done` when all objects of the set were there and header, key and all checksums of each
/// fit. The header decides, never the name alone. An object whose content does not fit its name is removed from the
/// store, so that it can be written again.
///
/// Several encodings. Objects of other element types have other names. A write is in the first encoding; a read takes
/// the first of which all objects are there.
///
/// Memory. A call that runs out of it throws std::bad_alloc, and has changed nothing. A request for which a lane has
/// none is answered `failed`.
class RemoteTier {
 public:
  /// `store` must outlive the tier, and is used by no one else while it exists. `sets`: the contents that the tier may
  /// hold, for each content and group one set or more, those of further encodings behind the first. Throws
  /// InvalidArgument: no set, sets of one content and group with different numbers of objects, limits of the store that
  /// have no room for a set. InvalidState while the store has requests that were not answered.
  RemoteTier(RemoteStore& store, std::vector<ObjectSet> sets);
  /// The sets of `options`, and staging memory for them from `memory`, which must outlive the tier; it is registered
  /// with the store. `scrub`: as HostTierOptions::scrub. Throws as the other constructor, ObjectSet, HostTier and
  /// RemoteStore::register_memory, and InvalidArgument for a store that is nullptr, no encoding and staging_bytes 0.
  RemoteTier(MemoryResource& memory, const RemoteOptions& options, const ModelId& model, bool scrub = false);
  RemoteTier(RemoteTier&&) noexcept;
  RemoteTier& operator=(RemoteTier&&) noexcept;
  /// Gives up requests that no lane has begun. Waits for those that lanes have begun, because these use the caller's
  /// memory. Must not run in a lane of the store.
  ~RemoteTier();

  /// The sets for a content and group, in the order of encodings; empty if the tier holds no such keys.
  [[nodiscard]] std::span<const ObjectSet> sets(CacheContent content, std::int32_t group) const noexcept;
  /// Bytes of memory for a read: those of the largest encoding. Throws InvalidArgument for a key that no set has.
  [[nodiscard]] std::size_t bytes(const ImageKey& key) const;
  /// Memory for sets on their way, each in a place of its kind; nullptr for a tier without.
  [[nodiscard]] HostTier* staging() const noexcept;

  /// Seals the objects of the first encoding in `set`, its bytes(), and stores them. The memory is left alone until the
  /// answer. False, and counted: the queue is full; there is no answer then. Answers: done, no_room, failed. After
  /// another answer than done, some objects may be there. Throws InvalidArgument: a key that no set has, negative
  /// tokens, memory of another size, or not registered with a store that needs it.
  [[nodiscard]] bool write(std::uint64_t ticket, const ImageKey& key, std::span<std::byte> set);
  /// Reads all objects of a key into `set`, bytes(key) bytes, which are undefined until the answer `done`. Answers:
  /// done, gone (one or more are not there), damaged, foreign_layout, wrong_position, failed. Otherwise as write.
  [[nodiscard]] bool read(std::uint64_t ticket, const ImageKey& key, std::span<std::byte> set);
  /// Asks whether all objects of a key are there, in any encoding. Answers: done, gone, failed. Otherwise as write.
  [[nodiscard]] bool find(std::uint64_t ticket, const ImageKey& key);
  /// Removes the objects of a key, in every encoding, from the store; for everybody. Not answered, and not ordered with
  /// other requests: it may take effect after a later write was answered. False: the queue is full. Throws as write.
  [[nodiscard]] bool remove(const ImageKey& key);

  /// Exchanges records of forgotten namespaces with the store, for all that use it with this model. Begins the
  /// exchange, or goes on with it, and waits for nothing: call it until it answers, and poll() in between. Answers:
  /// nothing, the exchange is under way; done, the store has all that this cache has forgotten, and the cache has
  /// forgotten all that the store had; failed; no_room, the store has no room, or there are more than
  /// CacheEpochs::records_max records together (CacheEpochs::adopt). Records that were read are adopted after every
  /// answer. A put that is under way for a stale request may end later: nobody asks for its name any more.
  ///
  /// The store keeps records in two objects, one of which is whole while one client replaces the other; while several
  /// do, a reader may miss some. A store that evicts them forgets them, until a cache that knows them calls this again.
  /// Called from the thread that calls the cache of `epochs`, always the same cache.
  std::optional<TransferStatus> share_forgotten(CacheEpochs& epochs);

  /// Takes answers, in the order in which requests ended. Returns how many were written to `completions`.
  std::size_t poll(std::span<Completion> completions);

  [[nodiscard]] RemoteTierStatistics statistics() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stateport
