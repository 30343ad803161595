// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/elastic_resource.hpp>
#include <stateport/backends/memory_resource.hpp>
#include <stateport/kernels/elastic_store.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>

#include "arguments.hpp"
#include "copies.hpp"
#include "handle_table.hpp"
#include "spec_object.hpp"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace stateport::c {

struct ElasticObject final : Object {
  static constexpr Kind kind = Kind::elastic_memory;
  explicit ElasticObject(const ElasticResource::Options& options) : Object(kind), resource(options) {}

  ElasticResource resource;  ///< thread-safe
};

struct StoreObject final : Object {
  static constexpr Kind kind = Kind::store;
  StoreObject(std::unique_ptr<MemoryResource> memory, const StateSpec& spec, const StoreOptions& options,
              const Stream& stream)
      : Object(kind), resource(std::move(memory)), store(*resource, spec, options, stream) {}
  explicit StoreObject(StateStore&& view) : Object(kind), store(std::move(view)) {}
  /// A view of an elastic store.
  StoreObject(std::shared_ptr<ElasticObject> memory, const StateSpec& spec, const StoreOptions& options,
              const Stream& stream)
      : Object(kind),
        elastic_memory(std::move(memory)),
        elastic(std::make_unique<ElasticStore>(elastic_memory->resource, spec, options, stream)),
        store(StateStore::view(elastic->store().tensors(), options.slots)) {}

  /// Within the store. Made when something is copied or cleared for the first time: a store that only describes memory
  /// takes none of the device.
  [[nodiscard]] SlotCopier& copier() {
    if (!own_copier) own_copier.emplace(store);
    return *own_copier;
  }

  std::unique_ptr<MemoryResource> resource;  ///< null for a view
  std::shared_ptr<ElasticObject> elastic_memory;
  std::unique_ptr<ElasticStore> elastic;  ///< null where all slots have memory
  bool has_mover = false;                 ///< which maps and unmaps extents
  StateStore store;
  std::optional<SlotCopier> own_copier;
  std::vector<SlotCopy> plan;
  std::vector<SlotId> slots;
};

struct CopierObject final : Object {
  static constexpr Kind kind = Kind::copier;
  CopierObject(std::shared_ptr<StoreObject> from, std::shared_ptr<StoreObject> to)
      : Object(kind), source(std::move(from)), destination(std::move(to)), copier(source->store, destination->store) {}
  CopierObject(std::shared_ptr<StoreObject> scratch, std::shared_ptr<StoreObject> with, std::shared_ptr<StoreObject> to)
      : Object(kind),
        source(std::move(scratch)),
        live(std::move(with)),
        destination(std::move(to)),
        copier(source->store, live->store, destination->store) {}

  std::shared_ptr<StoreObject> source;
  std::shared_ptr<StoreObject> live;  ///< null without scratch
  std::shared_ptr<StoreObject> destination;
  SlotCopier copier;
  std::vector<SlotCopy> plan;
  std::vector<SlotCopy> second_plan;
};

}  // namespace stateport::c
