// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/name_key.hpp>
#include <stateport/core/model/ids.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace stateport {

/// Which names of a Namespace CacheEpochs::forget() compares.
enum class ForgetBy : std::uint8_t {
  name_space,  ///< both
  extra_key,   ///< that alone: an adapter, with the contents of all tenants
  salt,        ///< that alone: a tenant, with the contents of all adapters
  all          ///< neither: the contents of all namespaces
};

/// A call of CacheEpochs::forget(), from which other caches and later processes learn of it.
struct ForgetRecord {
  std::uint64_t cache = 0;      ///< a random number of the cache that was told
  std::uint64_t call = 0;       ///< the calls of that cache are numbered from 1
  std::uint32_t extra_key = 0;  ///< a hash of the name that was compared; 0: none
  std::uint32_t salt = 0;       ///< the same
  ForgetBy by = ForgetBy::name_space;
  friend constexpr bool operator==(const ForgetRecord&, const ForgetRecord&) noexcept = default;
};

/// Contents of a RequestCache that no later prompt may find, because the weights changed or somebody wants them gone.
/// Nothing waits for requests that run: they go on with the KV and the states that they hold, and are stale from then
/// on. A stale request publishes nothing.
///
/// All other contents of the device, of the host and of files are gone at once. The next answer with transfers names
/// the drops. Files have lost them for good once these drops, and the transfers before them, have ended and
/// FileTier::wait_idle() has returned. Contents of the remote tier stay there, under names that no prompt of this cache
/// asks for. Nor does one of another cache that adopted the records of this one, a later process or another machine:
/// StateTiers::share_forgotten() keeps them in the store.
///
/// Ranks of a group make these calls at the same point of their sequence of calls. Not thread-safe, as its cache. No
/// call allocates.
class CacheEpochs {
 public:
  static constexpr std::size_t records_max = 1024;

  /// The weights change: no later RequestCache::start() finds anything that was made before, neither on the device nor
  /// in a tier, a file or a store. `epoch` is the number of the new weights; 0: the current number plus 1. Answers the
  /// new epoch. Throws InvalidArgument for a number that is not greater than the current one. O(all).
  virtual std::uint64_t advance(std::uint64_t epoch = 0) = 0;
  /// The number of the weights, at first RequestCacheOptions::epoch. Caches with equal numbers find each other's
  /// contents in a shared store: so equal numbers must mean equal weights.
  [[nodiscard]] virtual std::uint64_t current() const noexcept = 0;

  /// The same for the contents of some namespaces: an adapter gets new weights, or a tenant leaves. `by` says which
  /// names are compared. The epoch stays.
  ///
  /// - Files: contents of earlier processes go as well, of any namespace, unless a request has used them since. Their
  ///   namespace is not known.
  /// - Names: from then on contents of these namespaces have other names, in all later epochs too. They follow from the
  ///   record of this call (forgotten()): the cache shares them with those that adopt it, and with no others.
  /// - A later process with the same epoch that does not adopt the record may find the old contents in the remote tier,
  ///   and in files after a crash before FileTier::wait_idle() (see above).
  /// - After records_max calls with different arguments, those of adopted records included, the next such call forgets
  ///   all namespaces. From then on the cache is alone: adopt() answers false.
  ///
  /// For weights of an adapter that machines change at different times, name the version in Namespace::extra_key
  /// instead: no record says which contents are older than which weights.
  ///
  /// Throws InvalidArgument for a `by` that is no ForgetBy. O(all).
  virtual void forget(const Namespace& name_space, ForgetBy by = ForgetBy::name_space) = 0;
  /// All that this cache has forgotten by name, and all namespaces at once where reset() forgot while requests ran: of
  /// each cache and each arguments the last call. An engine keeps them for later processes, and hands them to other
  /// caches. Valid until the next call of anything.
  [[nodiscard]] virtual std::span<const ForgetRecord> forgotten() const noexcept = 0;
  /// Forgets the contents that these calls of other caches forgot, as if they had been made here, unless their records
  /// are here already. Prompts then have the names that they have in those caches. An engine calls it before it
  /// attaches files and serves. The ranks of a group give the records of the first rank's forget() to all others: so
  /// contents have equal names. False: together there are more than records_max, or were once; all namespaces are
  /// forgotten, and this cache is alone. It shares names with no other cache from then on, and adopts nothing: its own
  /// contents go by its own forget() only. Throws InvalidArgument for a record that no cache has made. O(records), and
  /// O(all) for each that is new.
  virtual bool adopt(std::span<const ForgetRecord> records) = 0;

  /// The request started before its contents were forgotten. An engine that has only new weights ends it as preempted
  /// and starts it again. Throws InvalidArgument for a request that does not run. O(1).
  [[nodiscard]] virtual bool is_stale(RequestId request) const = 0;

 protected:
  ~CacheEpochs() = default;
};

}  // namespace stateport
