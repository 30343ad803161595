// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/state_tiers.hpp>

#include <stateport/backends/internal/device_calls.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/resharder.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "move/copy_lane.hpp"
#include "move/make_state_tiers.hpp"
#include "move/transfer_executor.hpp"

#include <algorithm>
#include <memory>
#include <utility>

namespace stateport {
namespace {

std::vector<const StateStore*> stores_of(const StateTiersOptions& options) {
  std::vector<const StateStore*> stores = options.states;
  if (options.kv != nullptr) stores.push_back(options.kv);
  require(!stores.empty(), "states", "empty", "there must be states or KV");
  for (const StateStore* store : stores) require(store != nullptr, "states", "nullptr", "must be a store");
  return stores;
}

std::vector<tiers::TransferExecutor::Kind> kinds_of(const StateTiersOptions& options) {
  std::vector<tiers::TransferExecutor::Kind> kinds;
  for (const StateStore* store : stores_of(options)) {
    const bool is_state = kinds.size() < options.states.size();
    kinds.push_back(
        {.layout = ImageLayout(store->spec(), {.model = options.model,
                                               .content = is_state ? CacheContent::state : CacheContent::kv_block,
                                               .group = is_state ? static_cast<std::int32_t>(kinds.size()) : 0,
                                               .shard = options.shard}),
         .slots = store->slots()});
  }
  return kinds;
}

HostTier make_host(MemoryResource& memory, const StateTiersOptions& options,
                   const std::vector<tiers::TransferExecutor::Kind>& kinds) {
  HostTierOptions host{.budget_bytes = options.host_budget_bytes, .scrub = options.scrub};
  require(options.host_budget_bytes > 0 || options.files || options.remote, "host_budget_bytes",
          options.host_budget_bytes, "there is no tier at all");
  if (options.files) {
    require(options.staging_bytes > 0, "staging_bytes", options.staging_bytes, "files need staging memory");
    require(options.file_transfers_max > 0, "file_transfers_max", options.file_transfers_max, "must be >= 1");
    host.staging_bytes = options.staging_bytes;
  }
  for (std::size_t group = 0; group < options.states.size(); ++group)
    host.state_image_bytes.push_back(kinds[group].layout.image_bytes());
  if (options.kv != nullptr) host.kv_image_bytes = kinds.back().layout.image_bytes();
  return HostTier(memory, host);
}

/// The images of one kind as a store, with places as slots.
StateStore view_of(const HostTier& host, std::size_t kind, const ImageLayout& layout) {
  const auto number = static_cast<std::int32_t>(kind);
  std::vector<StateTensorView> tensors;
  for (std::size_t i = 0; i < layout.spec().tensors().size(); ++i)
    tensors.push_back({.spec = layout.spec().tensors()[i],
                       .base = host.data() + layout.section_offset(i),
                       .slot_stride_bytes = static_cast<std::int64_t>(host.stride_bytes(number))});
  return StateStore::view(tensors, host.places(number));
}

std::optional<FileTier> make_files(const StateTiersOptions& options,
                                   const std::vector<tiers::TransferExecutor::Kind>& kinds) {
  if (!options.files) return {};
  std::vector<ImageLayout> layouts;
  for (const tiers::TransferExecutor::Kind& kind : kinds) layouts.push_back(kind.layout);
  FileTierOptions files = *options.files;
  files.scrub |= options.scrub;
  return FileTier(files, std::move(layouts));
}

std::optional<RemoteTier> make_remote(MemoryResource& memory, const StateTiersOptions& options) {
  if (!options.remote) return {};
  const RemoteOptions& remote = *options.remote;
  require(remote.states.size() == options.states.size(), "remote.states", remote.states.size(),
          "there must be a layout for each store of states");
  require(remote.kv.has_value() == (options.kv != nullptr), "remote.kv", remote.kv ? "a layout" : "nothing",
          "there must be a layout where there is KV, and none where there is not");
  return RemoteTier(memory, remote, options.model, options.scrub);
}

/// The copiers between objects in staging memory and the device's store of a kind, and its images in host memory if
/// there are any.
void add_remote_routes(std::vector<tiers::RouteCopier>& copiers, const tiers::CopyRoutes& routes, std::size_t kind,
                       const RemoteTier& remote, const RemoteOptions& options, const StateStore& device,
                       const StateStore* images) {
  const bool is_state = kind < options.states.size();
  const auto& [layout, shard] = is_state ? options.states[kind] : *options.kv;
  const auto number = static_cast<std::int32_t>(kind);
  const std::span<const ObjectSet> sets =
      remote.sets(is_state ? CacheContent::state : CacheContent::kv_block, is_state ? number : 0);
  const HostTier& staging = *remote.staging();
  for (std::size_t encoding = 0; encoding < sets.size(); ++encoding) {
    std::vector<StateStore> views;
    for (std::size_t object = 0; object < sets[encoding].size(); ++object)
      views.push_back(
          sets[encoding].view(object, staging.data(), staging.stride_bytes(number), staging.places(number)));
    std::vector<ShardStore> objects;
    for (std::size_t object = 0; object < views.size(); ++object)
      objects.push_back({&views[object], sets[encoding].shard(object)});
    const ShardStore rank{&device, shard};
    copiers[routes.from_objects(kind, encoding)] = tiers::route_of(Resharder(layout, objects, {&rank, 1}));
    if (encoding > 0) continue;
    copiers[routes.to_objects(kind)] = tiers::route_of(Resharder(layout, {&rank, 1}, objects));
    if (images == nullptr) continue;
    const ShardStore in_host{images, shard};
    copiers[routes.host_to_objects(kind)] = tiers::route_of(Resharder(layout, {&in_host, 1}, objects));
  }
}

/// The file tier, as the executor sees it.
class TierFiles final : public tiers::LowerTier {
 public:
  explicit TierFiles(std::optional<FileTier>& tier) : tier_(tier) {}

  bool write(std::span<const Image> images, std::uint64_t ticket) override {
    images_.clear();
    for (const Image& image : images) images_.push_back({image.key, image.bytes.data()});
    return tier_->write(ticket, images_);
  }
  bool read(const ImageKey& key, std::span<std::byte> image, std::uint64_t ticket) override {
    return tier_->read(ticket, key, image);
  }
  bool remove(const ImageKey& key) override {
    tier_->remove(key);
    return true;
  }
  std::size_t poll(std::span<Completion> completions) override { return tier_->poll(completions); }

 private:
  std::optional<FileTier>& tier_;
  std::vector<FileImage> images_;
};

/// The remote tier, as the executor sees it.
class TierObjects final : public tiers::LowerTier {
 public:
  explicit TierObjects(std::optional<RemoteTier>& tier) : tier_(tier) {}

  /// Of one image: kv_bytes_together is 0.
  bool write(std::span<const Image> images, std::uint64_t ticket) override {
    const auto& [key, bytes] = images.front();
    return tier_->write(ticket, key, bytes.first(tier_->sets(key.content, key.group).front().bytes()));
  }
  bool read(const ImageKey& key, std::span<std::byte> image, std::uint64_t ticket) override {
    return tier_->read(ticket, key, image);
  }
  bool find(const ImageKey& key, std::uint64_t ticket) override { return tier_->find(ticket, key); }
  bool remove(const ImageKey& key) override { return tier_->remove(key); }
  std::size_t poll(std::span<Completion> completions) override { return tier_->poll(completions); }

 private:
  std::optional<RemoteTier>& tier_;
};

}  // namespace

// The users of the memory of images end before it: lower tiers, whose unanswered requests are given up, and
// copies.
class StateTiers::Impl {
 public:
  Impl(MemoryResource& memory, const StateTiersOptions& options, const tiers::CopyLaneMaker& lanes)
      : kinds(kinds_of(options)),
        host(make_host(memory, options, kinds)),
        remote(make_remote(memory, options)),
        routes{.kinds = kinds.size(), .encodings = remote ? options.remote->encodings.size() : 0},
        lane(make_lane(options, lanes)),
        files(make_files(options, kinds)),
        file_transfers_max(options.file_transfers_max),
        executor(host, kinds, *lane, routes,
                 {.tier = files ? &tier_files : nullptr, .staging = &host, .transfers_max = file_transfers_max},
                 below_remote()) {}

  [[nodiscard]] tiers::TransferExecutor::Below below_remote() {
    if (!remote) return {};
    return {.tier = &tier_objects,
            .staging = remote->staging(),
            .objects = true,
            .transfers_max = SIZE_MAX,  // staging memory bounds them
            .kv_bytes_together = 0};
  }
  [[nodiscard]] std::unique_ptr<tiers::CopyLane> make_lane(const StateTiersOptions& options,
                                                           const tiers::CopyLaneMaker& lanes) const {
    const std::vector<const StateStore*> device = stores_of(options);
    std::vector<StateStore> images;
    const bool has_images = host.places(0) > 0;
    tiers::LaneParts parts{.routes = routes, .copiers = std::vector<tiers::RouteCopier>(routes.count())};
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
      if (has_images) {
        images.push_back(view_of(host, kind, kinds[kind].layout));
        parts.copiers[routes.to_host(kind)] = tiers::route_of(SlotCopier(*device[kind], images[kind]));
        parts.copiers[routes.to_device(kind)] = tiers::route_of(SlotCopier(images[kind], *device[kind]));
      }
      if (remote)
        add_remote_routes(parts.copiers, routes, kind, *remote, *options.remote, *device[kind],
                          has_images ? &images[kind] : nullptr);
    }
    parts.device = device;
    parts.host = images;
    return lanes.make(std::move(parts));
  }

  void run(const Stream& stream, TransferPlan transfers) {
    require_state(!detail::is_capturing(stream), "StateTiers", "the stream captures a graph");
    executor.execute(stream, transfers);
  }
  /// With numbers of their own, the first of which it returns.
  TransferId run_own(const Stream& stream, std::vector<Transfer> transfers) {
    const TransferId first = std::exchange(next_id, next_id + transfers.size());
    for (std::size_t i = 0; i < transfers.size(); ++i) transfers[i].id = first + i;
    try {
      run(stream, transfers);
    } catch (const BackendError&) {
      throw;  // some may be under way
    } catch (...) {
      next_id = first;  // nothing has begun
      throw;
    }
    return first;
  }
  [[nodiscard]] bool in_host(const ImageKey& image) const { return host.find(image).valid(); }
  [[nodiscard]] bool in_file(const ImageKey& image) const {
    bool held = false;
    return files && files->lookup({&image, 1}, {&held, 1}) > 0;
  }
  /// Where an image is to be got from: the last tier where none is known to have it.
  [[nodiscard]] Medium fastest(const ImageKey& image) const {
    if (in_host(image)) return Medium::host;
    if (in_file(image)) return Medium::file;
    return remote ? Medium::remote : files ? Medium::file : Medium::host;
  }

  std::vector<tiers::TransferExecutor::Kind> kinds;
  HostTier host;
  std::optional<RemoteTier> remote;
  TierObjects tier_objects{remote};
  tiers::CopyRoutes routes;
  std::unique_ptr<tiers::CopyLane> lane;
  std::optional<FileTier> files;
  TierFiles tier_files{files};
  std::size_t file_transfers_max;
  tiers::TransferExecutor executor;
  TransferId next_id = first_own_id;
  std::vector<ImageKey> to_drain;
};

StateTiers::StateTiers(MemoryResource& host_memory, const StateTiersOptions& options)
    : StateTiers(host_memory, options, tiers::CopyLaneMaker()) {}
StateTiers::StateTiers(MemoryResource& host_memory, const StateTiersOptions& options, const tiers::CopyLaneMaker& lanes)
    : impl_(std::make_unique<Impl>(host_memory, options, lanes)) {}
StateTiers make_state_tiers(MemoryResource& host_memory, const StateTiersOptions& options,
                            const tiers::CopyLaneMaker& lanes) {
  return StateTiers(host_memory, options, lanes);
}
StateTiers::StateTiers(StateTiers&&) noexcept = default;
StateTiers& StateTiers::operator=(StateTiers&&) noexcept = default;
StateTiers::~StateTiers() = default;

void StateTiers::execute(const Stream& stream, TransferPlan transfers) {
  impl_->run(stream, transfers);
}

void StateTiers::reserve(std::size_t transfers) {
  impl_->executor.reserve(transfers);
}

std::size_t StateTiers::poll(const Stream& stream, std::span<TransferResult> results) {
  require_state(!detail::is_capturing(stream), "StateTiers", "the stream captures a graph");
  return impl_->executor.poll(stream, results);
}

TransferId StateTiers::put(const Stream& stream, std::span<const SlotImage> images, Medium to) {
  std::vector<Transfer> stores;
  for (const SlotImage& image : images)
    stores.push_back({.kind = Transfer::Kind::store,
                      .image = image.key,
                      .from = Medium::device,
                      .to = to,
                      .place = image.slot.value()});
  return impl_->run_own(stream, std::move(stores));
}

TransferId StateTiers::get(const Stream& stream, std::span<const SlotImage> images) {
  std::vector<Transfer> loads;
  for (const SlotImage& image : images)
    loads.push_back({.kind = Transfer::Kind::load,
                     .image = image.key,
                     .from = impl_->fastest(image.key),
                     .to = Medium::device,
                     .place = image.slot.value()});
  return impl_->run_own(stream, std::move(loads));
}

std::size_t StateTiers::lookup(std::span<const ImageKey> images, std::span<std::optional<Medium>> where) const {
  require(where.size() == images.size(), "where", where.size(), "must have an element for each image");
  for (const ImageKey& image : images) static_cast<void>(impl_->host.kind_of(image));
  std::size_t found = 0;
  for (std::size_t i = 0; i < images.size(); ++i) {
    where[i].reset();
    if (impl_->in_host(images[i]))
      where[i] = Medium::host;
    else if (impl_->in_file(images[i]))
      where[i] = Medium::file;
    found += where[i].has_value();
  }
  return found;
}

TransferId StateTiers::find(const Stream& stream, std::span<const ImageKey> images) {
  require_state(impl_->remote.has_value(), "find", "there is no remote tier");
  std::vector<Transfer> finds;
  for (const ImageKey& image : images)
    finds.push_back({.kind = Transfer::Kind::find, .image = image, .from = Medium::remote, .to = Medium::remote});
  return impl_->run_own(stream, std::move(finds));
}

std::optional<TransferStatus> StateTiers::share_forgotten(CacheEpochs& epochs) {
  require_state(impl_->remote.has_value(), "share_forgotten", "there is no remote tier");
  return impl_->remote->share_forgotten(epochs);
}

void StateTiers::remove(const Stream& stream, std::span<const ImageKey> images) {
  std::vector<Transfer> drops;
  for (const ImageKey& image : images) {
    drops.push_back({.kind = Transfer::Kind::drop, .image = image, .from = Medium::host, .to = Medium::host});
    if (impl_->files)
      drops.push_back({.kind = Transfer::Kind::drop, .image = image, .from = Medium::file, .to = Medium::file});
  }
  impl_->run(stream, drops);
}

std::size_t StateTiers::drain(const Stream& stream) {
  require_state(impl_->files.has_value(), "drain", "there is no file tier");
  const std::size_t under_way = impl_->executor.file_transfers();
  const bool begins = impl_->to_drain.empty() && under_way == 0;
  std::vector<ImageKey> anew;
  std::vector<ImageKey>& keys = begins ? anew : impl_->to_drain;
  if (begins) {
    keys = impl_->host.keys();
    std::erase_if(keys, [&](const ImageKey& key) { return impl_->in_file(key); });
  }
  // Loads are begun however many are under way.
  const std::size_t room = impl_->file_transfers_max - std::min(under_way, impl_->file_transfers_max);
  const std::size_t left = keys.size() - std::min(room, keys.size());
  std::vector<Transfer> copies;
  for (const ImageKey& key : std::span(keys).subspan(left))
    copies.push_back({.kind = Transfer::Kind::copy, .image = key, .from = Medium::host, .to = Medium::file});
  impl_->run_own(stream, std::move(copies));
  keys.resize(left);
  if (begins) impl_->to_drain.swap(anew);
  return impl_->to_drain.size() + impl_->executor.file_transfers();
}

std::size_t StateTiers::in_flight() const noexcept {
  return impl_->executor.in_flight();
}
const TransferTimes& StateTiers::times() const noexcept {
  return impl_->executor.times();
}
const HostTier& StateTiers::host() const noexcept {
  return impl_->host;
}
const FileTier* StateTiers::files() const noexcept {
  return impl_->files ? &*impl_->files : nullptr;
}
const RemoteTier* StateTiers::remote() const noexcept {
  return impl_->remote ? &*impl_->remote : nullptr;
}
const ImageLayout& StateTiers::layout(CacheContent content, std::int32_t group) const {
  const ImageKey key{.content = content, .group = group};
  return impl_->kinds[static_cast<std::size_t>(impl_->host.kind_of(key))].layout;
}
void StateTiers::check_invariants() const {
  impl_->executor.check_invariants();
  if (impl_->files) impl_->files->check_invariants();
}

}  // namespace stateport
