// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/memory_resource.hpp>
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

struct StoreObject final : Object {
  static constexpr Kind kind = Kind::store;
  StoreObject(std::unique_ptr<MemoryResource> memory, const StateSpec& spec, const StoreOptions& options,
              const Stream& stream)
      : Object(kind), resource(std::move(memory)), store(*resource, spec, options, stream) {}
  explicit StoreObject(StateStore&& view) : Object(kind), store(std::move(view)) {}

  /// Within the store. Made when something is copied or cleared for the first time: a store that only describes memory
  /// takes none of the device.
  [[nodiscard]] SlotCopier& copier() {
    if (!own_copier) own_copier.emplace(store);
    return *own_copier;
  }

  std::unique_ptr<MemoryResource> resource;  ///< null for a view
  StateStore store;
  std::optional<SlotCopier> own_copier;
  std::vector<SlotCopy> plan;
  std::vector<SlotId> slots;
};

}  // namespace stateport::c
