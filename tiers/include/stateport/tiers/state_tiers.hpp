// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/memory_resource.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/core/model/ids.hpp>
#include <stateport/core/model/model_layout.hpp>
#include <stateport/core/serve/cache_epochs.hpp>
#include <stateport/core/tier/transfer_plan.hpp>
#include <stateport/kernels/state_store.hpp>
#include <stateport/tiers/file_tier.hpp>
#include <stateport/tiers/host_tier.hpp>
#include <stateport/tiers/image.hpp>
#include <stateport/tiers/remote_options.hpp>
#include <stateport/tiers/remote_tier.hpp>
#include <stateport/tiers/transfer_times.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace stateport {

namespace tiers {
class CopyLaneMaker;
}

struct StateTiersOptions {
  /// [groups] The engine's checkpoints on the device: with RequestCacheOptions::separate_checkpoints the store of
  /// these, else that of all states. They and their memory must outlive the tiers, and no two of them may share memory.
  std::vector<const StateStore*> states;
  /// The engine's KV, a block in a slot: each KV tensor of a layer is a tensor of kind recurrent. Or nullptr.
  const StateStore* kv = nullptr;
  ModelId model;
  ModelShard shard;
  /// Of the images that stay in host memory; HostTierOptions. 0: none do.
  std::size_t host_budget_bytes = 0;
  /// The folder of the file tier, if there is one.
  std::optional<FileTierOptions> files = {};
  /// Host memory beside the budget for images on their way to or from a file; whole frames, at least one. Loads wait
  /// for it, stores to a file are refused without it. Only with `files`.
  std::size_t staging_bytes = std::size_t{64} << 20;
  /// With this number of transfers with files under way or waiting, stores and copies to a file are refused. Loads
  /// never are.
  std::size_t file_transfers_max = 4096;
  /// The remote tier, if there is one.
  std::optional<RemoteOptions> remote = {};
  /// As HostTierOptions::scrub and, for files, FileTierOptions::scrub. Objects of the remote tier are the store's.
  bool scrub = false;
};

/// An image, and its slot (of KV: its block) on the device.
struct SlotImage {
  ImageKey key;
  SlotId slot;
};

/// Carries out TransferPlans: moves states and KV blocks between the device and the tiers below it, and tells how it
/// went. It decides nothing. Images have the format of image.hpp in every tier; in host memory their headers are
/// checked at every load of an image that is ready (one that is copying has none yet), and their sections have no
/// checksums: the threads of the file tier compute those.
///
/// Order. All copies of one StateTiers run one behind the other, on whatever streams its calls name: a call on another
/// stream than the last one's makes that stream wait for the copies so far. So a load may follow a store of the same
/// image in one plan, a store may read a slot that a load before it writes, and the host memory of a dropped image
/// serves the next store at once, also while a copy still reads it. The engine orders its own work on other streams.
///
/// Each plan takes one launch for each kind of image (the state of a group, KV) and direction, and another one only
/// where a store or load touches a slot that a load of the same plan writes, or a drop forgets an image that the same
/// plan copies.
///
/// Answers. poll answers a store when its copy is done and readers may be sent there, a store or copy to a file when
/// the image would survive a crash, a load when its copy to the device is enqueued. A store of an image that is held
/// already copies nothing. A store whose image is dropped before it is done is answered `gone`. After a load that was
/// not `done` its slot holds anything.
///
/// Files. KV blocks that wait to be written behind each other share a file of up to 16 MiB. An image from a file is
/// verified before it is enqueued. A store or copy to a file is answered `no_room` when file_transfers_max transfers
/// are under way, when a store finds no staging memory, and when the file tier has no room and no write under way. A
/// drop of a file waits for the transfers of the image before it; a store or copy to a file behind that drop takes it
/// back.
///
/// Remote. Images of states and KV are packed into objects, and unpacked, by one launch for all images of a kind;
/// element types and conv layouts are converted on the way. A store, a load or a copy is answered as with a file. A
/// find is answered `done` if all objects of this rank's share were there, `gone` if not. An object from the store is
/// verified before it is enqueued. Ranks answer for themselves: an engine with several tells its RequestCache `done`
/// where all ranks have it.
///
/// Nothing waits for the device or for a file but the constructor and the destructor. Nothing is allocated while no
/// more is under way than ever before. Calls must come from one thread at a time, and not while the stream captures a
/// graph (InvalidState). A launch that fails ends its transfers as `failed`. If an event
/// fails, the call throws, and the transfers stay under way.
///
/// Memory. A call that runs out of it throws std::bad_alloc and has changed nothing. A transfer for which a launch or a
/// tier below has no memory is answered `failed`; images that such a tier is to drop are dropped by a later poll.
class StateTiers {
 public:
  /// Takes the memory of images from `host_memory`, which must outlive the tiers: a PinnedResource on a GPU, any
  /// resource of host memory else. Opens the folder of the files. Waits for the device. Throws InvalidArgument as
  /// HostTier, ImageLayout, SlotCopier and FileTier, and for neither states nor KV, and where there is no tier at all;
  /// with a remote tier as RemoteTier and Resharder, and for another number of layouts than of states. OutOfMemory.
  StateTiers(MemoryResource& host_memory, const StateTiersOptions& options);
  StateTiers(StateTiers&&) noexcept;
  StateTiers& operator=(StateTiers&&) noexcept;
  /// Waits for the device. Transfers with a file that poll has not answered are given up.
  ~StateTiers();

  /// Begins transfers in their order. The span may be reused when the call returns. Throws InvalidArgument for a
  /// transfer that no tier here can carry out (a content, group, slot or tier that is not here): nothing has begun
  /// then. Loads from elsewhere are the engine's, and passed over. O(transfers).
  void execute(const Stream& stream, TransferPlan transfers);
  /// Makes room for this number of transfers: the next execute() of as many does not run out of memory.
  /// O(kinds of images).
  void reserve(std::size_t transfers);

  /// Answers transfers that have ended, at most as many as `results` has room for, each once; returns how many. Makes
  /// transfers under way go on: call it in every step of the engine, on the stream that reads the loaded slots.
  std::size_t poll(const Stream& stream, std::span<TransferResult> results);

  /// put() and get() number their transfers from here on, drain() too: a RequestCache never gets so far.
  static constexpr TransferId first_own_id = TransferId{1} << 63;

  /// For engines without a RequestCache. Stores slots into host memory or files: the answers have the number that this
  /// returns for the first one, and those behind it for the others. Images that are held are not stored again. The
  /// caller removes what it put. `no_room`: the tier is full, or for now its queue or staging memory. Throws as
  /// execute. O(images).
  TransferId put(const Stream& stream, std::span<const SlotImage> images, Medium to = Medium::host);
  TransferId put(const Stream& stream, const ImageKey& image, SlotId slot, Medium to = Medium::host) {
    const SlotImage one{image, slot};
    return put(stream, {&one, 1}, to);
  }
  /// Loads each image into its slot, from the first of host memory, files and the remote tier that has it. Call it once
  /// the puts are answered. Numbers and throws as put.
  TransferId get(const Stream& stream, std::span<const SlotImage> images);
  TransferId get(const Stream& stream, const ImageKey& image, SlotId slot) {
    const SlotImage one{image, slot};
    return get(stream, {&one, 1});
  }
  /// Sets where[i] to the fastest tier that image i can be got from, or to none, and returns how many can. O(images).
  /// Knows nothing of the remote tier, which has to be asked: find(). Throws InvalidArgument for another size, and for
  /// a content or group that is not here.
  std::size_t lookup(std::span<const ImageKey> images, std::span<std::optional<Medium>> where) const;
  /// Asks the remote tier for images; poll answers done or gone. Numbers as put. Throws InvalidState without one, and
  /// InvalidArgument as lookup.
  TransferId find(const Stream& stream, std::span<const ImageKey> images);
  /// Drops images of host memory and files, as a plan would. Those that are nowhere are ignored. Objects of the remote
  /// tier belong to all that share it, and stay. Throws as execute.
  void remove(const Stream& stream, std::span<const ImageKey> images);

  /// Exchanges records of forgotten namespaces with the remote tier: RemoteTier::share_forgotten(), with this object's
  /// poll(). An engine calls it until it answers before it attaches files and serves, after each
  /// CacheEpochs::forget(), and now and then, to learn what other machines have forgotten. What they forgot since the
  /// last answer this cache still finds: no look-up of a request asks for records. With several ranks the first one
  /// calls it, and the others adopt its forgotten() at the same point. Throws InvalidState without a remote tier.
  std::optional<TransferStatus> share_forgotten(CacheEpochs& epochs);

  /// Copies images of host memory to the file tier that does not hold them: call it and poll until it returns 0, and
  /// the next start finds all images in files()->keys(). Returns how many are not copied yet. A copy that fails is
  /// answered by poll, numbered as put does, and tried again: give up when nothing but failures come. Throws
  /// InvalidState without a file tier. O(images in host memory) where it begins anew.
  std::size_t drain(const Stream& stream);

  /// Transfers that poll has not answered, and those answered whose memory is still in use.
  [[nodiscard]] std::size_t in_flight() const noexcept;
  /// Of transfers since construction.
  [[nodiscard]] const TransferTimes& times() const noexcept;
  /// The contents of host memory, and how much room there is.
  [[nodiscard]] const HostTier& host() const noexcept;
  /// The contents of files, those found when it was opened, and its speed; nullptr without a file tier.
  [[nodiscard]] const FileTier* files() const noexcept;
  /// How the remote tier fares; nullptr without one.
  [[nodiscard]] const RemoteTier* remote() const noexcept;
  /// Of the state of a group, or of a KV block. Throws InvalidArgument for a content that is not here.
  [[nodiscard]] const ImageLayout& layout(CacheContent content, std::int32_t group = 0) const;

  /// Recounts everything; throws std::logic_error naming the first broken invariant.
  void check_invariants() const;

 private:
  class Impl;
  friend StateTiers make_state_tiers(MemoryResource&, const StateTiersOptions&, const tiers::CopyLaneMaker&);
  StateTiers(MemoryResource& host_memory, const StateTiersOptions& options, const tiers::CopyLaneMaker& lanes);
  std::unique_ptr<Impl> impl_;
};

}  // namespace stateport
