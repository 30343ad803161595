// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/ids.hpp>
#include <stateport/core/tier/tier_options.hpp>
#include <stateport/core/tier/transfer_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace stateport {

/// The tiers of a RequestCache below the device, as the mover of the bytes sees them. The cache decides and names
/// transfers. The mover carries them out and tells the cache when they have ended.
///
///     plan, insert or commit ─► take_transfers ─► execute ─► enqueue the answer of plan, insert or commit
///     whenever some have ended ─► settle ─► take_transfers …
///
/// Order. A store reads a slot that a copy answered later may overwrite, and a load writes a slot that a copy answered
/// earlier may read or write. So transfers are taken after every plan(), insert() and commit(), whether there are any
/// or not, and enqueued before the answer of that call. The answer of a commit or an insert is enqueued before any
/// later call. A plan (and the `next` of a commit) is enqueued before the next start(), unless it is cancelled. An
/// end() that answers copies is as a commit(). A settle() that ends the last find of a request is as a start(): it may
/// begin a load.
///
/// Ranks. All decisions follow from the arguments of these calls. The caches of a tensor-parallel group decide alike if
/// all get the same arguments, answers included: a store, a load or a find is `done` for one of them only if it is for
/// all.
///
/// Memory. No call allocates, as of RequestCache, as long as transfers are taken after each call that names some.
///
/// Not thread-safe, and part of its cache: the calls of both are one sequence.
class CacheTiers {
 public:
  virtual ~CacheTiers() = default;
  CacheTiers(const CacheTiers&) = delete;
  CacheTiers& operator=(const CacheTiers&) = delete;

  /// The transfers between the device and the tiers. To be called after every plan(), insert() and commit() of the
  /// cache: until then start(), plan(), insert(), cancel(), commit(), end(), settle() and drain() throw InvalidState.
  /// start(), end() and settle() add to it; where nothing runs, it is called after these, too. Valid until the next
  /// call of anything.
  [[nodiscard]] virtual TransferPlan take_transfers() = 0;
  /// How many transfers take_transfers() would answer now. O(1).
  [[nodiscard]] virtual std::size_t transfers_to_take() const noexcept = 0;
  /// These transfers ended, in any order. A load that is `done` was written, or is enqueued before all that is enqueued
  /// from now on. Returns the number of requests whose load has ended, whole or not: they wait no longer. When all
  /// finds of a request have ended, it is looked up again with their results: more finds, a load or nothing follow.
  /// Throws InvalidArgument for a number that is not under way, or was not taken, and has settled those before it.
  virtual std::int32_t settle(std::span<const TransferResult> results) = 0;
  /// Something is being asked or loaded for the request, or was being loaded when it ended. Throws InvalidArgument for
  /// a request that does not run.
  [[nodiscard]] virtual bool is_loading(RequestId request) const = 0;
  [[nodiscard]] virtual std::size_t transfers_under_way() const noexcept = 0;
  /// Names stores of all checkpoints and copies of all that is on the host, to files or, without a file tier, to the
  /// remote tier. The contents stay where they are, too. Only contents that no faster medium has make room for them.
  /// Ends where there is no room or no place in the queue: once these transfers have settled, another call goes on,
  /// until nothing is named, or nothing more is written: a transfer that failed is named again. O(all). Throws
  /// InvalidState without a tier of files or a remote one.
  virtual void drain() = 0;
  /// The tier has this image, from before the cache was made, or from another cache. False: there is no number left for
  /// it, or no room in the tier: it is to be removed, or for the remote tier not remembered. A state of several groups
  /// is there once all of its images were attached, one after the other, as FileTier::keys() lists them. If the next
  /// image is attached or the next call ends before, the images of this state are dropped. Throws InvalidArgument for a
  /// medium that is no tier of this cache, tokens that are not whole blocks (of states too, in every group in
  /// columns), a group that the cache does not have, and KV with TierOptions::kv_elsewhere.
  virtual bool attach(Medium medium, const ImageKey& image) = 0;
  /// From now on loads are weighed by these instead of those of TierOptions: for speeds that are measured while the
  /// engine runs, the same on all ranks. Throws InvalidArgument for a number that is negative or not finite.
  virtual void set_speeds(const TierSpeeds& speeds) = 0;
  /// All zero for a medium that is no tier.
  [[nodiscard]] virtual TierUsage usage(Medium medium) const = 0;

 protected:
  CacheTiers() = default;
};

}  // namespace stateport
