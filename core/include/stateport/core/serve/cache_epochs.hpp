// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/name_key.hpp>
#include <stateport/core/model/ids.hpp>

#include <cstdint>

namespace stateport {

/// Which names of a Namespace CacheEpochs::forget() compares.
enum class ForgetBy : std::uint8_t {
  name_space,  ///< both
  extra_key,   ///< that alone: an adapter, with the contents of all tenants
  salt         ///< that alone: a tenant, with the contents of all adapters
};

/// Contents of a RequestCache that no later prompt may find, because the weights changed or somebody wants them gone.
/// Nothing waits for requests that run: they go on with the KV and the states that they hold, and are stale from then
/// on. A stale request publishes nothing.
///
/// All other contents of the device, of the host and of files are gone at once. The next answer with transfers names
/// the drops. Files have lost them for good once these drops, and the transfers before them, have ended and
/// FileTier::wait_idle() has returned. Contents of the remote tier stay there, under names that no prompt of this cache
/// asks for.
///
/// Ranks of a group make these calls at the same point of their sequence of calls. Not thread-safe, as its cache. No
/// call allocates.
class CacheEpochs {
 public:
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
  /// - Names: from then on contents of these namespaces have names with a random number of this cache, in all later
  ///   epochs too. So it shares them with no other cache, nor do the ranks of a group name them alike in files, stores
  ///   and events.
  /// - A later process with the same epoch may find the old contents in the remote tier, and in files after a crash
  ///   before FileTier::wait_idle() (see above). Start it with another epoch if they are wrong.
  /// - After 1,024 calls with different arguments, the next such call forgets all namespaces.
  ///
  /// Throws InvalidArgument for a `by` that is no ForgetBy. O(all).
  virtual void forget(const Namespace& name_space, ForgetBy by = ForgetBy::name_space) = 0;

  /// The request started before its contents were forgotten. An engine that has only new weights ends it as preempted
  /// and starts it again. Throws InvalidArgument for a request that does not run. O(1).
  [[nodiscard]] virtual bool is_stale(RequestId request) const = 0;

 protected:
  ~CacheEpochs() = default;
};

}  // namespace stateport
