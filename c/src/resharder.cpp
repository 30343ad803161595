// SPDX-License-Identifier: Apache-2.0
// Copies between stores that share a model differently.
#include <stateport/c/resharder.h>
#include <stateport/kernels/resharder.hpp>

#include "arguments.hpp"
#include "copies.hpp"
#include "guard.hpp"
#include "model_layout_object.hpp"
#include "store_object.hpp"

#include <memory>
#include <utility>
#include <vector>

using namespace stateport;
using namespace stateport::c;

namespace {

static_assert(sizeof(stateport_shard_store) == 24);

using Stores = std::vector<std::shared_ptr<StoreObject>>;

struct ResharderObject final : Object {
  static constexpr Kind kind = Kind::resharder;
  ResharderObject(Stores of, Resharder&& made) : Object(kind), stores(std::move(of)), resharder(std::move(made)) {}

  Stores stores;
  Resharder resharder;
  std::vector<SlotCopy> plan;
};

std::vector<ShardStore> find_stores(const stateport_shard_store* given, std::size_t count, const char* argument,
                                    Stores& held) {
  std::vector<ShardStore> shards;
  for (const stateport_shard_store& shard : array(given, count, argument)) {
    held.push_back(find<StoreObject>(shard.store, argument));
    shards.push_back({&held.back()->store, from_c(shard.shard)});
  }
  return shards;
}

}  // namespace

stateport_status stateport_resharder_create(stateport_model_layout* layout, const stateport_shard_store* sources,
                                            size_t source_count, const stateport_shard_store* destinations,
                                            size_t destination_count, stateport_resharder** out) {
  return guarded([&] {
    const Held<ModelLayoutObject> held(layout, "layout");
    create(out, [&] {
      Stores stores;
      const auto from = find_stores(sources, source_count, "sources", stores);
      const auto to = find_stores(destinations, destination_count, "destinations", stores);
      return std::make_shared<ResharderObject>(std::move(stores), Resharder(held->layout, from, to));
    });
  });
}

stateport_status stateport_resharder_destroy(stateport_resharder* resharder) {
  return guarded([&] { destroy<ResharderObject>(resharder, "resharder"); });
}

stateport_status stateport_resharder_copy(stateport_resharder* resharder, void* stream,
                                          const stateport_slot_copy* copies, size_t count) {
  return guarded([&] {
    const Held<ResharderObject> held(resharder, "resharder");
    held->resharder.copy_slots(Stream::from_native(stream), read_plan(copies, count, held->plan));
  });
}
