// SPDX-License-Identifier: Apache-2.0
#include "move/remote_objects.hpp"

#include <stateport/core/model/error.hpp>
#include <stateport/kernels/resharder.hpp>

#include <algorithm>
#include <exception>
#include <utility>

namespace stateport::tiers {
namespace {

void validate(const RemoteOptions& options) {
  require(options.store != nullptr, "remote.store", "nullptr", "must be a store");
  require(!options.encodings.empty(), "remote.encodings", "empty", "there must be one that is written");
  require(options.staging_bytes > 0, "remote.staging_bytes", options.staging_bytes, "objects need staging memory");
  require(options.transfers_max > 0, "remote.transfers_max", options.transfers_max, "must be >= 1");
}

std::vector<ObjectSet> make_sets(const RemoteOptions& options, const ModelId& model) {
  validate(options);
  std::vector<ObjectSet> sets;
  for (std::size_t group = 0; group < options.states.size(); ++group)
    for (const ObjectEncoding& encoding : options.encodings)
      sets.emplace_back(
          options.states[group].layout, options.states[group].shard,
          ObjectSetOptions{
              .model = model, .group = static_cast<std::int32_t>(group), .grid = options.grid, .encoding = encoding});
  if (options.kv)
    sets.emplace_back(options.kv->layout, options.kv->shard,
                      ObjectSetOptions{.model = model, .content = CacheContent::kv_block, .grid = options.grid});
  return sets;
}

/// Room for the largest encoding of every kind.
HostTier make_staging(MemoryResource& memory, const RemoteOptions& options, std::span<const ObjectSet> sets,
                      bool scrub) {
  HostTierOptions host{.staging_bytes = options.staging_bytes, .scrub = scrub};
  host.state_image_bytes.resize(options.states.size());
  for (const ObjectSet& set : sets) {
    const bool is_state = set.options().content == CacheContent::state;
    std::size_t& bytes =
        is_state ? host.state_image_bytes[static_cast<std::size_t>(set.options().group)] : host.kv_image_bytes;
    bytes = std::max(bytes, set.bytes());
  }
  return HostTier(memory, host);
}

}  // namespace

RemoteObjects::RemoteObjects(MemoryResource& memory, const RemoteOptions& options, const ModelId& model, bool scrub)
    : options_(options) {
  std::vector<ObjectSet> sets = make_sets(options, model);
  staging_.emplace(make_staging(memory, options, sets, scrub));
  options_.store->register_memory(staging_memory());
  try {
    tier_.emplace(*options_.store, std::move(sets), options_.tier);
  } catch (...) {
    options_.store->unregister_memory(staging_memory());
    throw;
  }
}

RemoteObjects::~RemoteObjects() {
  tier_.reset();
  try {
    options_.store->unregister_memory(staging_memory());
  } catch (const std::exception&) {
    // The store's client may be gone. Nothing uses the memory any more.
  }
}

std::span<std::byte> RemoteObjects::staging_memory() const {
  const std::size_t frame = staging_->frame_bytes();
  return {staging_->data(), (options_.staging_bytes + frame - 1) / frame * frame};
}

const SharedLayout& RemoteObjects::layout_of(std::size_t kind) const {
  return kind < options_.states.size() ? options_.states[kind] : *options_.kv;
}

std::span<const ObjectSet> RemoteObjects::sets_of(std::size_t kind) const {
  const bool is_state = kind < options_.states.size();
  return tier_->sets(is_state ? CacheContent::state : CacheContent::kv_block,
                     is_state ? static_cast<std::int32_t>(kind) : 0);
}

void RemoteObjects::add_routes(std::vector<RouteCopier>& copiers, const CopyRoutes& routes, std::size_t kind,
                               const StateStore& device, const StateStore* images) const {
  const auto& [layout, shard] = layout_of(kind);
  const auto number = static_cast<std::int32_t>(kind);
  const std::span<const ObjectSet> sets = sets_of(kind);
  for (std::size_t encoding = 0; encoding < sets.size(); ++encoding) {
    std::vector<StateStore> views;
    for (std::size_t object = 0; object < sets[encoding].size(); ++object)
      views.push_back(
          sets[encoding].view(object, staging_->data(), staging_->stride_bytes(number), staging_->places(number)));
    std::vector<ShardStore> objects;
    for (std::size_t object = 0; object < views.size(); ++object)
      objects.push_back({&views[object], sets[encoding].shard(object)});
    const ShardStore rank{&device, shard};
    copiers[routes.from_objects(kind, encoding)] = route_of(Resharder(layout, objects, {&rank, 1}));
    if (encoding > 0) continue;
    copiers[routes.to_objects(kind)] = route_of(Resharder(layout, {&rank, 1}, objects));
    const ShardStore in_host{images, shard};
    if (images != nullptr) copiers[routes.host_to_objects(kind)] = route_of(Resharder(layout, {&in_host, 1}, objects));
  }
}

bool RemoteObjects::write(std::span<const Image> images, std::uint64_t ticket) {
  // kv_bytes_together is 0: they come one by one.
  const Image& image = images.front();
  const std::size_t bytes = tier_->sets(image.key.content, image.key.group).front().bytes();
  return tier_->write(ticket, image.key, image.bytes.first(bytes));
}
bool RemoteObjects::read(const ImageKey& key, std::span<std::byte> image, std::uint64_t ticket) {
  return tier_->read(ticket, key, image);
}
bool RemoteObjects::find(const ImageKey& key, std::uint64_t ticket) {
  return tier_->find(ticket, key);
}
void RemoteObjects::remove(const ImageKey& key) {
  tier_->remove(key);
}
std::size_t RemoteObjects::poll(std::span<Completion> completions) {
  completions_.resize(completions.size());
  const std::size_t count = tier_->poll(completions_);
  for (std::size_t i = 0; i < count; ++i)
    completions[i] = {
        .ticket = completions_[i].id, .status = completions_[i].status, .encoding = completions_[i].encoding};
  return count;
}

}  // namespace stateport::tiers
