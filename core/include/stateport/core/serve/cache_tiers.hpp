// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/ids.hpp>
#include <stateport/core/tier/tier_options.hpp>
#include <stateport/core/tier/transfer_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace stateport {

/// The answer of CacheTiers::settle.
struct SettledTransfers {
  /// Number of requests that stopped waiting for loads or finds. Some may wait for other requests now (ShareRunning).
  std::int32_t ready_requests = 0;
  TransferPlan transfers;
};

/// The tiers of a RequestCache below the device, as the mover of the bytes sees them. The cache decides and names
/// transfers in its answers. The mover carries them out and tells the cache when they have ended.
///
///     start, refresh, plan, insert, commit, end ─► execute `transfers` ─► enqueue all else that was answered
///     whenever some have ended                  ─► settle ─► execute `transfers`
///
/// An answer with the member `transfers` names every transfer that was decided since the last such answer: by the same
/// call, and by calls whose answers have no such member (an end without copies, cancel, reset, attach, a start or an
/// insert without room). Each transfer is named once: it is carried out even if the plan that names it is cancelled or
/// replaced. The span is valid until the next call of anything. settle({}) asks for transfers at any time.
///
/// Order. A store reads a slot that a copy answered later may overwrite, and a load writes a slot that a copy answered
/// earlier may read or write. So the transfers of an answer are enqueued before all else that it names. The answer of a
/// commit, an insert or an end is enqueued before any later call. A plan (and the `next` of a commit) is enqueued
/// before the next start(), unless it is cancelled. A settle() that ends the last find of a request counts as a
/// start(): it may begin a load.
///
/// Ranks. All decisions follow from the arguments of these calls. The caches of a tensor-parallel group decide alike if
/// all get the same arguments, answers included: a store, a load or a find is `done` for one of them only if it is for
/// all.
///
/// Memory. No call allocates, as of RequestCache, unless attach() drops more images in a row than the tiers have room
/// for and no answer with transfers comes between.
///
/// Not thread-safe, and part of its cache: the calls of both are one sequence.
class CacheTiers {
 public:
  virtual ~CacheTiers() = default;
  CacheTiers(const CacheTiers&) = delete;
  CacheTiers& operator=(const CacheTiers&) = delete;

  /// These transfers ended, in any order. A load that is `done` was written, or is enqueued before all that is enqueued
  /// from now on. When all finds of a request have ended, it is looked up again with their results: more finds, a load
  /// or nothing follow. Throws InvalidArgument for a number that is not under way, or that stands twice.
  virtual SettledTransfers settle(std::span<const TransferResult> results) = 0;
  /// Something is being asked or loaded for the request, or was being loaded when it ended. Throws InvalidArgument for
  /// a request that does not run.
  [[nodiscard]] virtual bool is_loading(RequestId request) const = 0;
  /// The number of transfers that were decided and have not ended.
  [[nodiscard]] virtual std::size_t transfers_under_way() const noexcept = 0;
  /// The largest number of transfers of one answer, for a mover that makes room for them once.
  [[nodiscard]] virtual std::size_t transfers_max() const noexcept = 0;
  /// Names stores of all checkpoints and copies of all that is on the host, to files or, without a file tier, to the
  /// remote tier. The originals stay. To make room the tier evicts only contents that no faster medium has. A call
  /// stops when the tier or the queue is full. Settle its transfers and call again, until a call names nothing, or
  /// TierUsage::bytes_written no longer grows: a transfer that failed is named again. O(all). Throws
  /// InvalidState without a tier of files or a remote one.
  [[nodiscard]] virtual TransferPlan drain() = 0;
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
  /// All zero for a medium that is no tier. O(the most transfers that were under way together).
  [[nodiscard]] virtual TierUsage usage(Medium medium) const = 0;

 protected:
  CacheTiers() = default;
};

}  // namespace stateport
