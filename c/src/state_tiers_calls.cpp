// SPDX-License-Identifier: Apache-2.0
// Images below the device, and the calls that move them.
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/c/state_tiers.h>
#include <stateport/tiers/state_tiers.hpp>
#include <stateport/tiers/tier_metrics.hpp>

#include "arguments.hpp"
#include "cache_object.hpp"
#include "containers/reserve_amortised.hpp"
#include "guard.hpp"
#include "model_layout_object.hpp"
#include "object_encoding.hpp"
#include "remote_store_object.hpp"
#include "store_object.hpp"
#include "transfers.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

using namespace stateport;
using namespace stateport::c;

namespace {

static_assert(sizeof(stateport_slot_image) == 40 && sizeof(stateport_shared_layout) == 24 &&
              sizeof(stateport_object_encoding) == 8);

constexpr std::size_t results_at_once = 64;

/// The stores that images come from and go to.
struct TierStores {
  std::unique_ptr<RemoteStoreUse> remote;  ///< or null
  std::vector<std::shared_ptr<StoreObject>> states;
  std::shared_ptr<StoreObject> kv;  ///< or null
};

struct TiersObject final : Object {
  static constexpr Kind kind = Kind::state_tiers;
  TiersObject(TierStores of, const StateTiersOptions& options)
      : Object(kind), stores(std::move(of)), tiers(memory, options) {}

  /// Also in a callback of their remote store: it carries a request of these tiers, whose end their destructor awaits.
  [[nodiscard]] bool is_calling_back_here() const noexcept override {
    return Object::is_calling_back_here() || (stores.remote != nullptr && stores.remote->is_calling_back_here());
  }

  /// Takes all answers there are, for the cache and for the engine.
  void gather(const Stream& stream) {
    stateport::detail::reserve_amortised(of_cache, of_cache.size() + tiers.in_flight());
    stateport::detail::reserve_amortised(own, own.size() + tiers.in_flight());
    std::array<TransferResult, results_at_once> results;
    std::size_t count = results.size();
    while (count == results.size()) {
      count = tiers.poll(stream, results);
      for (const TransferResult& result : std::span(results).first(count))
        (result.id < StateTiers::first_own_id && !served.expired() ? of_cache : own).push_back(result);
    }
  }
  /// From now on answers with low numbers are this cache's.
  void serve(const std::shared_ptr<CacheObject>& cache) {
    const auto before = served.lock();
    if (before == cache) return;
    const bool is_idle = of_cache.empty() && elsewhere.empty() && waiting.empty();
    require_state(tiers.in_flight() == 0 && (before == nullptr || is_idle), "cache",
                  "transfers of another cache, or of the engine, are under way");
    waiting.clear();
    waiting.reserve(cache->tiers().transfers_max());
    of_cache.clear();
    elsewhere.clear();
    loaded = 0;
    served = cache;
  }
  /// Throws if begin() of this number of transfers would run out of memory, and for a stream that captures.
  void prepare(const Stream& stream, std::size_t transfers) {
    tiers.execute(stream, {});
    tiers.reserve(transfers);
    stateport::detail::reserve_amortised(elsewhere, elsewhere.size() + transfers);
  }
  /// The cache hears of the ends that were gathered, of each once, even if it refuses them.
  SettledTransfers settle(CacheTiers& cache) {
    try {
      const SettledTransfers settled = cache.settle(of_cache);
      of_cache.clear();
      return settled;
    } catch (const InvalidArgument&) {
      of_cache.clear();
      throw;
    }
  }
  /// Begins transfers of the cache, or they have failed. Precondition: prepare().
  void begin(CacheTiers& cache, const Stream& stream, TransferPlan transfers);
  /// Begins those that wait. They still do if that throws for memory or for the stream.
  void begin_waiting(CacheTiers& cache, const Stream& stream) {
    if (waiting.empty()) return;
    prepare(stream, waiting.size());
    try {
      begin(cache, stream, waiting);
    } catch (...) {
      waiting.clear();
      throw;
    }
    waiting.clear();
  }
  void fail(CacheTiers& cache, const Stream& stream, TransferPlan transfers);
  void note_elsewhere(TransferPlan transfers);
  void drop(const Stream& stream, const Transfer& transfer);

  TierStores stores;
  PinnedResource memory;
  StateTiers tiers;
  std::weak_ptr<CacheObject> served;  ///< whose transfers begin_transfers begins
  std::vector<Transfer> waiting;      ///< its answers to end_transfers, which had no memory to begin them
  std::int32_t loaded = 0;            ///< that the cache was told of, and the engine not yet
  std::vector<TransferResult> of_cache;
  std::vector<TransferResult> own;
  std::vector<stateport_transfer> elsewhere;  ///< loads that are the engine's to carry out
};

void TiersObject::begin(CacheTiers& cache, const Stream& stream, TransferPlan transfers) {
  note_elsewhere(transfers);
  try {
    tiers.execute(stream, transfers);
  } catch (const InvalidArgument&) {
    fail(cache, stream, transfers);
    throw;
  }
}

void TiersObject::note_elsewhere(TransferPlan transfers) {
  for (const Transfer& transfer : transfers)
    if (transfer.from == Medium::elsewhere) elsewhere.push_back(to_c(transfer));
}

/// Nothing of the plan has begun. Its drops are carried out all the same, because the cache counts that room as free;
/// the engine's own loads are told by take_loads as ever. Transfers that the cache names when it hears of this fail,
/// too: it relies on copies that the engine has yet to enqueue, and a later call of begin_transfers may come before
/// that.
void TiersObject::fail(CacheTiers& cache, const Stream& stream, TransferPlan transfers) {
  while (!transfers.empty()) {
    std::vector<TransferResult> failed;
    for (const Transfer& transfer : transfers) {
      if (transfer.kind == Transfer::Kind::drop)
        drop(stream, transfer);
      else if (transfer.from != Medium::elsewhere)
        failed.push_back({transfer.id, TransferStatus::failed});
    }
    const SettledTransfers settled = cache.settle(failed);
    loaded += settled.ready_requests;
    transfers = settled.transfers;
    note_elsewhere(transfers);
  }
}

void TiersObject::drop(const Stream& stream, const Transfer& transfer) {
  if (transfer.from != Medium::host && tiers.files() == nullptr) return;
  try {
    tiers.execute(stream, {&transfer, 1});
  } catch (const InvalidArgument&) {
    // A content or group that is not here, of which there is no image either.
  }
}

using HeldTiers = Held<TiersObject>;
using HeldCache = Held<CacheObject>;

TierStores find_stores(const stateport_state_tiers_options& given) {
  TierStores stores;
  for (stateport_store* store : array(given.states, given.state_count, "states"))
    stores.states.push_back(find<StoreObject>(store, "states"));
  if (given.kv != nullptr) stores.kv = find<StoreObject>(given.kv, "kv");
  return stores;
}

ModelId read_model(const stateport_state_tiers_options& given) {
  const auto name = array(static_cast<const char*>(given.model), given.model_bytes, "model");
  require(!name.empty() || given.folder == nullptr, "model_bytes", given.model_bytes,
          "files need the name of the model, because other models may use the folder");
  return name.empty() ? ModelId{} : ModelId(std::string_view(name.data(), name.size()));
}

std::optional<FileTierOptions> read_files(const stateport_state_tiers_options& given) {
  if (given.folder == nullptr) {
    require(given.file_bytes == 0, "file_bytes", given.file_bytes, "needs a folder");
    return {};
  }
  FileTierOptions wanted{
      .folder = given.folder, .capacity_bytes = given.file_bytes, .free_floor_bytes = given.free_floor_bytes};
  if (given.file_queue_bytes != 0) wanted.queue_bytes = given.file_queue_bytes;
  if (given.file_lanes != 0) wanted.lanes = given.file_lanes;
  return wanted;
}

SharedLayout read_layout(const stateport_shared_layout& given, const char* argument) {
  return {.layout = Held<ModelLayoutObject>(given.layout, argument)->layout, .shard = from_c(given.shard)};
}

std::optional<RemoteOptions> read_remote(const stateport_state_tiers_options& options, TierStores& stores) {
  if (options.remote == nullptr) return {};
  const auto given = read_struct<stateport_remote_options>(options.remote, "remote");
  require(options.model_bytes > 0, "model_bytes", options.model_bytes,
          "a remote tier needs the name of the model, because other models may use the store");
  stores.remote = std::make_unique<RemoteStoreUse>(find<RemoteStoreObject>(given.store, "remote.store"));
  RemoteOptions wanted{.store = stores.remote->store()};
  for (const stateport_shared_layout& layout : array(given.states, given.state_count, "remote.states"))
    wanted.states.push_back(read_layout(layout, "remote.states"));
  if (given.kv != nullptr) wanted.kv = read_layout(*given.kv, "remote.kv");
  wanted.grid = {.head_groups = given.head_groups == 0 ? 1 : given.head_groups,
                 .layers_per_object = given.layers_per_object};
  if (given.encodings != nullptr) wanted.encodings.clear();
  for (const stateport_object_encoding& encoding : array(given.encodings, given.encoding_count, "remote.encodings"))
    wanted.encodings.push_back(from_c(encoding));
  if (given.staging_bytes != 0) wanted.staging_bytes = given.staging_bytes;
  return wanted;
}

std::shared_ptr<TiersObject> make_tiers(const stateport_state_tiers_options* options) {
  const auto given = read_struct<stateport_state_tiers_options>(options, "options");
  TierStores stores = find_stores(given);
  StateTiersOptions wanted{.kv = stores.kv ? &stores.kv->store : nullptr,
                           .model = read_model(given),
                           .shard = {given.layer_begin, given.layer_end, given.head_group, given.head_groups},
                           .host_budget_bytes = given.host_bytes,
                           .files = read_files(given),
                           .scrub = given.scrub != 0};
  for (const auto& store : stores.states) wanted.states.push_back(&store->store);
  if (given.staging_bytes != 0) wanted.staging_bytes = given.staging_bytes;
  if (given.file_transfers_max != 0) wanted.file_transfers_max = given.file_transfers_max;
  wanted.remote = read_remote(given, stores);
  return std::make_shared<TiersObject>(std::move(stores), wanted);
}

void describe(const RemoteTier& tier, stateport_state_tiers_info& info) {
  const RemoteTierStatistics done = tier.statistics();
  info.remote_written_bytes = done.written_bytes;
  info.remote_read_bytes = done.read_bytes;
  info.remote_write_seconds = done.write_seconds;
  info.remote_read_seconds = done.read_seconds;
  info.remote_asked_images = std::accumulate(done.find_answers.begin(), done.find_answers.end(), std::uint64_t{0});
  info.remote_found_images = done.find_answers[static_cast<std::size_t>(TransferStatus::done)];
  info.remote_removed_objects = done.removed_objects;
}

stateport_state_tiers_info describe(const StateTiers& tiers) {
  const HostTier::Usage& host = tiers.host().usage();
  stateport_state_tiers_info info = {.in_flight = tiers.in_flight(),
                                     .host_frame_bytes = tiers.host().frame_bytes(),
                                     .host_bytes = static_cast<std::uint64_t>(host.frames) * tiers.host().frame_bytes(),
                                     .host_images = host.images,
                                     .host_image_bytes = host.image_bytes};
  if (tiers.remote() != nullptr) describe(*tiers.remote(), info);
  if (tiers.files() == nullptr) return info;
  const FileTierStatistics done = tiers.files()->statistics();
  const FolderFindings& found = tiers.files()->findings();
  info.file_images = done.images;
  info.file_bytes = done.held_bytes;
  info.found_images = found.images;
  info.foreign_files = found.foreign_files;
  info.foreign_images = found.foreign_images;
  info.damaged_files = found.damaged_files;
  info.unreadable_files = found.unreadable_files;
  info.dropped_temporaries = found.dropped_temporaries;
  info.written_images = done.written_images;
  info.written_bytes = done.written_bytes;
  info.read_images = done.read_images;
  info.read_bytes = done.read_bytes;
  info.write_seconds = done.write_seconds;
  info.read_seconds = done.read_seconds;
  info.unscrubbed = done.unscrubbed;
  return info;
}

std::vector<Transfer> read_transfers(const stateport_transfer* transfers, std::size_t count) {
  std::vector<Transfer> wanted;
  for (const stateport_transfer& transfer : array(transfers, count, "transfers")) {
    wanted.push_back(from_c(transfer));
    require(transfer.id < StateTiers::first_own_id, "id", transfer.id, "must be below 2^63");
  }
  return wanted;
}

std::vector<SlotImage> read_images(const stateport_slot_image* images, std::size_t count) {
  std::vector<SlotImage> wanted;
  for (const stateport_slot_image& image : array(images, count, "images")) {
    require(image.reserved == 0, "images.reserved", image.reserved, "must be 0");
    wanted.push_back({from_c(image.key), SlotId{image.slot}});
  }
  return wanted;
}

/// Whether the cache has it now. Nothing: it is nothing of this cache.
std::optional<bool> attach(CacheTiers& cache, const ImageKey& image) {
  try {
    return cache.attach(Medium::file, image);
  } catch (const InvalidArgument&) {
    return std::nullopt;
  }
}

}  // namespace

stateport_status stateport_image_bytes(stateport_spec* spec, uint64_t* out) {
  return guarded([&] {
    const Held<SpecObject> held(spec, "spec");
    checked(out, "out") = ImageLayout(held->spec, {}).image_bytes();
  });
}

stateport_status stateport_state_tiers_create(const stateport_state_tiers_options* options,
                                              stateport_state_tiers** out) {
  return guarded([&] { create(out, [&] { return make_tiers(options); }); });
}

stateport_status stateport_state_tiers_destroy(stateport_state_tiers* tiers) {
  return guarded([&] { destroy<TiersObject>(tiers, "tiers"); });
}

stateport_status stateport_state_tiers_describe(stateport_state_tiers* tiers, stateport_state_tiers_info* out) {
  return guarded([&] {
    const HeldTiers held(tiers, "tiers");
    const Out result(out, "out");
    stateport_state_tiers_info info = describe(held->tiers);
    info.in_flight += held->of_cache.size() + held->own.size();
    result.write(info);
  });
}

stateport_status stateport_state_tiers_prometheus(stateport_state_tiers* tiers, const char* prefix, char* text,
                                                  size_t capacity, size_t* bytes) {
  return guarded([&] {
    const HeldTiers held(tiers, "tiers");
    write_text(text, capacity, bytes, [&] { return to_prometheus(held->tiers, prefix_of(prefix)); });
  });
}

stateport_status stateport_state_tiers_check(stateport_state_tiers* tiers) {
  return guarded([&] { HeldTiers(tiers, "tiers")->tiers.check_invariants(); });
}

// Calls that hold a cache and tiers take the cache first.

stateport_status stateport_state_tiers_begin_transfers(stateport_state_tiers* tiers, void* stream,
                                                       stateport_request_cache* cache,
                                                       const stateport_transfer* transfers, size_t count) {
  return guarded([&] {
    const HeldCache held_cache(cache, "cache");
    const HeldTiers held(tiers, "tiers");
    CacheTiers& below = held_cache->tiers();
    const Stream on = Stream::from_native(stream);
    const std::vector<Transfer> plan = read_transfers(transfers, count);
    held->serve(find<CacheObject>(cache, "cache"));
    const Callback settles(*held);  // a cache that hears of an end may call the engine
    std::exception_ptr refused;
    try {
      held->begin_waiting(below, on);
    } catch (const InvalidArgument&) {
      refused = std::current_exception();
    }
    held->prepare(on, plan.size());
    held->begin(below, on, plan);
    if (refused != nullptr) std::rethrow_exception(refused);
  });
}

stateport_status stateport_state_tiers_end_transfers(stateport_state_tiers* tiers, void* stream,
                                                     stateport_request_cache* cache, int32_t* loaded) {
  return guarded([&] {
    const HeldCache held_cache(cache, "cache");
    const HeldTiers held(tiers, "tiers");
    CacheTiers& below = held_cache->tiers();
    const Stream on = Stream::from_native(stream);
    held->serve(find<CacheObject>(cache, "cache"));
    const Callback settles(*held);  // a cache that hears of an end may call the engine
    held->begin_waiting(below, on);
    held->gather(on);
    const SettledTransfers settled = held->settle(below);
    held->loaded += settled.ready_requests;
    held->waiting.assign(settled.transfers.begin(), settled.transfers.end());
    held->begin_waiting(below, on);
    if (loaded != nullptr) *loaded = held->loaded;
    held->loaded = 0;
  });
}

stateport_status stateport_state_tiers_share_forgotten(stateport_state_tiers* tiers, stateport_request_cache* cache,
                                                       int32_t* status) {
  return guarded([&] {
    const HeldCache held_cache(cache, "cache");
    const HeldTiers held(tiers, "tiers");
    std::int32_t& reported = checked(status, "status");
    const Callback forgets(*held);  // a cache that forgets may call the engine
    const auto ended = held->tiers.share_forgotten(held_cache->cache->epochs());
    reported = ended ? static_cast<std::int32_t>(*ended) : STATEPORT_NONE;
  });
}

stateport_status stateport_state_tiers_take_loads(stateport_state_tiers* tiers, stateport_transfer* out,
                                                  size_t capacity, size_t* count) {
  return guarded([&] {
    const HeldTiers held(tiers, "tiers");
    const auto room = array(out, capacity, "out");
    std::size_t& reported = checked(count, "count");
    reported = std::min(room.size(), held->elsewhere.size());
    const auto last = held->elsewhere.begin() + static_cast<std::ptrdiff_t>(reported);
    std::copy(held->elsewhere.begin(), last, room.begin());
    held->elsewhere.erase(held->elsewhere.begin(), last);
  });
}

stateport_status stateport_state_tiers_attach(stateport_state_tiers* tiers, void* stream,
                                              stateport_request_cache* cache, stateport_attached_images* out) {
  return guarded([&] {
    const HeldCache held_cache(cache, "cache");
    const HeldTiers held(tiers, "tiers");
    const Out result(out, "out");
    CacheTiers& below = held_cache->tiers();
    require_state(held->tiers.files() != nullptr, "attach", "there is no file tier");
    require_state(held_cache->cache->options().tiers.file_bytes > 0, "attach", "the cache has no file tier");
    stateport_attached_images reported = {};
    std::vector<ImageKey> refused;
    for (const ImageKey& image : held->tiers.files()->keys()) {
      const std::optional<bool> attached = attach(below, image);
      if (attached && !*attached) refused.push_back(image);
      ++(!attached ? reported.skipped : *attached ? reported.attached : reported.removed);
    }
    held->tiers.remove(Stream::from_native(stream), refused);
    result.write(reported);
  });
}

stateport_status stateport_state_tiers_execute(stateport_state_tiers* tiers, void* stream,
                                               const stateport_transfer* transfers, size_t count) {
  return guarded([&] {
    const HeldTiers held(tiers, "tiers");
    require_state(held->served.expired(), "execute", "a cache's transfers are begun by begin_transfers");
    held->tiers.execute(Stream::from_native(stream), read_transfers(transfers, count));
  });
}

stateport_status stateport_state_tiers_poll(stateport_state_tiers* tiers, void* stream, stateport_transfer_result* out,
                                            size_t capacity, size_t* count) {
  return guarded([&] {
    const HeldTiers held(tiers, "tiers");
    const auto room = array(out, capacity, "out");
    std::size_t& reported = checked(count, "count");
    held->gather(Stream::from_native(stream));
    reported = std::min(room.size(), held->own.size());
    const auto last = held->own.begin() + static_cast<std::ptrdiff_t>(reported);
    std::transform(held->own.begin(), last, room.begin(), [](const TransferResult& result) { return to_c(result); });
    held->own.erase(held->own.begin(), last);
  });
}

stateport_status stateport_state_tiers_put(stateport_state_tiers* tiers, void* stream,
                                           const stateport_slot_image* images, size_t count, int32_t medium,
                                           uint64_t* first) {
  return guarded([&] {
    const HeldTiers held(tiers, "tiers");
    std::uint64_t& number = checked(first, "first");
    const Medium to = medium_from_c(medium, "medium");
    number = held->tiers.put(Stream::from_native(stream), read_images(images, count), to);
  });
}

stateport_status stateport_state_tiers_get(stateport_state_tiers* tiers, void* stream,
                                           const stateport_slot_image* images, size_t count, uint64_t* first) {
  return guarded([&] {
    const HeldTiers held(tiers, "tiers");
    std::uint64_t& number = checked(first, "first");
    number = held->tiers.get(Stream::from_native(stream), read_images(images, count));
  });
}

stateport_status stateport_state_tiers_find(stateport_state_tiers* tiers, void* stream,
                                            const stateport_image_key* images, size_t count, uint64_t* first) {
  return guarded([&] {
    const HeldTiers held(tiers, "tiers");
    std::uint64_t& number = checked(first, "first");
    number = held->tiers.find(Stream::from_native(stream), read_keys(images, count, "images"));
  });
}

stateport_status stateport_state_tiers_lookup(stateport_state_tiers* tiers, const stateport_image_key* images,
                                              size_t count, int32_t* media) {
  return guarded([&] {
    const HeldTiers held(tiers, "tiers");
    const auto room = array(media, count, "media");
    const std::vector<ImageKey> keys = read_keys(images, count, "images");
    std::vector<std::optional<Medium>> where(keys.size());
    held->tiers.lookup(keys, where);
    std::ranges::transform(where, room.begin(), [](const std::optional<Medium>& medium) {
      return medium ? static_cast<std::int32_t>(*medium) : STATEPORT_NONE;
    });
  });
}

stateport_status stateport_state_tiers_remove(stateport_state_tiers* tiers, void* stream,
                                              const stateport_image_key* images, size_t count) {
  return guarded([&] {
    const HeldTiers held(tiers, "tiers");
    held->tiers.remove(Stream::from_native(stream), read_keys(images, count, "images"));
  });
}

stateport_status stateport_state_tiers_keys(stateport_state_tiers* tiers, int32_t medium, stateport_image_key* out,
                                            size_t capacity, size_t* count) {
  return guarded([&] {
    const HeldTiers held(tiers, "tiers");
    const auto room = array(out, capacity, "out");
    std::size_t& reported = checked(count, "count");
    const Medium of = medium_from_c(medium, "medium");
    const bool is_here = of == Medium::host || (of == Medium::file && held->tiers.files() != nullptr);
    require(is_here, "medium", medium, "is no tier that is here");
    const auto keys = of == Medium::host ? held->tiers.host().keys() : held->tiers.files()->keys();
    reported = keys.size();
    for (std::size_t i = 0; i < std::min(room.size(), keys.size()); ++i) room[i] = to_c(keys[i]);
  });
}

stateport_status stateport_state_tiers_drain(stateport_state_tiers* tiers, void* stream, size_t* left) {
  return guarded([&] {
    const HeldTiers held(tiers, "tiers");
    std::size_t& reported = checked(left, "left");
    reported = held->tiers.drain(Stream::from_native(stream));
  });
}
