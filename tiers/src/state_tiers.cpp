// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/state_tiers.hpp>

#include <stateport/backends/internal/device_calls.hpp>
#include <stateport/core/model/error.hpp>

#include "copy_lane.hpp"
#include "transfer_executor.hpp"

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
  HostTierOptions host{.budget_bytes = options.host_budget_bytes};
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

std::unique_ptr<tiers::CopyLane> lane_of(const HostTier& host, const StateTiersOptions& options,
                                         const std::vector<tiers::TransferExecutor::Kind>& kinds,
                                         const tiers::CopyLaneMaker& lanes) {
  std::vector<StateStore> views;
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) views.push_back(view_of(host, kind, kinds[kind].layout));
  return lanes.make(stores_of(options), views);
}

std::optional<FileTier> make_files(const StateTiersOptions& options,
                                   const std::vector<tiers::TransferExecutor::Kind>& kinds) {
  if (!options.files) return {};
  std::vector<ImageLayout> layouts;
  for (const tiers::TransferExecutor::Kind& kind : kinds) layouts.push_back(kind.layout);
  return FileTier(*options.files, std::move(layouts));
}

/// The file tier, as the executor sees it.
class TierFiles final : public tiers::ImageFiles {
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
  void remove(const ImageKey& key) override { tier_->remove(key); }
  std::size_t poll(std::span<Completion> completions) override {
    completions_.resize(completions.size());
    const std::size_t count = tier_->poll(completions_);
    for (std::size_t i = 0; i < count; ++i) completions[i] = {completions_[i].id, completions_[i].status};
    return count;
  }

 private:
  std::optional<FileTier>& tier_;
  std::vector<FileImage> images_;
  std::vector<FileCompletion> completions_;
};

}  // namespace

// What touches the memory of the images ends before it: files, whose unanswered requests are given up, and copies.
class StateTiers::Impl {
 public:
  Impl(MemoryResource& memory, const StateTiersOptions& options, const tiers::CopyLaneMaker& lanes)
      : kinds(kinds_of(options)),
        host(make_host(memory, options, kinds)),
        lane(lane_of(host, options, kinds, lanes)),
        files(make_files(options, kinds)),
        file_transfers_max(options.file_transfers_max),
        executor(host, kinds, *lane, files ? &tier_files : nullptr, {.file_transfers_max = file_transfers_max}) {}

  void run(const Stream& stream, TransferPlan plan) {
    require_state(!detail::is_capturing(stream), "StateTiers", "the stream captures a graph");
    executor.execute(stream, plan);
  }
  /// With numbers of their own, the first of which it returns.
  TransferId run_own(const Stream& stream, std::vector<Transfer> transfers) {
    const TransferId first = std::exchange(next_id, next_id + transfers.size());
    for (std::size_t i = 0; i < transfers.size(); ++i) transfers[i].id = first + i;
    try {
      run(stream, {.transfers = transfers});
    } catch (const InvalidArgument&) {
      next_id = first;  // nothing has begun; after another error some may be under way
      throw;
    }
    return first;
  }
  [[nodiscard]] bool in_host(const ImageKey& image) const { return host.find(image).valid(); }

  std::vector<tiers::TransferExecutor::Kind> kinds;
  HostTier host;
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
StateTiers::StateTiers(StateTiers&&) noexcept = default;
StateTiers& StateTiers::operator=(StateTiers&&) noexcept = default;
StateTiers::~StateTiers() = default;

void StateTiers::execute(const Stream& stream, TransferPlan plan) {
  impl_->run(stream, plan);
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
                     .from = !impl_->files || impl_->in_host(image.key) ? Medium::host : Medium::file,
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
    bool in_file = false;
    if (impl_->in_host(images[i]))
      where[i] = Medium::host;
    else if (impl_->files && impl_->files->lookup({&images[i], 1}, {&in_file, 1}) > 0)
      where[i] = Medium::file;
    found += where[i].has_value();
  }
  return found;
}

void StateTiers::remove(const Stream& stream, std::span<const ImageKey> images) {
  std::vector<Transfer> drops;
  for (const ImageKey& image : images) {
    drops.push_back({.kind = Transfer::Kind::drop, .image = image, .from = Medium::host, .to = Medium::host});
    if (impl_->files)
      drops.push_back({.kind = Transfer::Kind::drop, .image = image, .from = Medium::file, .to = Medium::file});
  }
  impl_->run(stream, {.transfers = drops});
}

std::size_t StateTiers::drain(const Stream& stream) {
  require_state(impl_->files.has_value(), "drain", "there is no file tier");
  std::vector<ImageKey>& keys = impl_->to_drain;
  const std::size_t under_way = impl_->executor.file_transfers();
  if (keys.empty() && under_way == 0) {
    keys = impl_->host.keys();
    std::erase_if(keys, [&](const ImageKey& key) {
      bool held = false;
      return impl_->files->lookup({&key, 1}, {&held, 1}) > 0;
    });
  }
  std::vector<Transfer> copies;
  for (std::size_t room = impl_->file_transfers_max - under_way; room > 0 && !keys.empty(); --room, keys.pop_back())
    copies.push_back({.id = impl_->next_id++,
                      .kind = Transfer::Kind::copy,
                      .image = keys.back(),
                      .from = Medium::host,
                      .to = Medium::file});
  impl_->run(stream, {copies});
  return keys.size() + impl_->executor.file_transfers();
}

std::size_t StateTiers::in_flight() const noexcept {
  return impl_->executor.in_flight();
}
const HostTier& StateTiers::host() const noexcept {
  return impl_->host;
}
const FileTier* StateTiers::files() const noexcept {
  return impl_->files ? &*impl_->files : nullptr;
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
