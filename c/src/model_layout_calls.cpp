// SPDX-License-Identifier: Apache-2.0
// How ranks share a model's state.
#include <stateport/c/model_layout.h>
#include <stateport/core/model/models.hpp>

#include "arguments.hpp"
#include "guard.hpp"
#include "model_layout_object.hpp"
#include "spec_object.hpp"

using namespace stateport;
using namespace stateport::c;

namespace {

static_assert(sizeof(stateport_shard) == 16 && sizeof(stateport_split_band) == 16 &&
              sizeof(stateport_tensor_split) == 24);

std::vector<TensorSplit> read_splits(const stateport_tensor_split* splits, std::size_t count) {
  std::vector<TensorSplit> wanted;
  for (const stateport_tensor_split& split : array(splits, count, "splits")) {
    require(split.reserved == 0, "reserved", split.reserved, "must be 0");
    TensorSplit& added = wanted.emplace_back(TensorSplit{.axis = split.axis});
    for (const stateport_split_band& band : array(split.bands, split.band_count, "bands"))
      added.bands.push_back({.extent = band.extent, .parts = band.parts, .replicable = band.unique == 0});
  }
  return wanted;
}

}  // namespace

stateport_status stateport_model_layout_create(stateport_spec* whole, const stateport_tensor_split* splits,
                                               size_t count, stateport_model_layout** out) {
  return guarded([&] {
    const Held<SpecObject> held(whole, "whole");
    create(out,
           [&] { return std::make_shared<ModelLayoutObject>(ModelLayout(held->spec, read_splits(splits, count))); });
  });
}

stateport_status stateport_model_layout_find(const char* model, const stateport_spec_options* options,
                                             stateport_model_layout** out) {
  return guarded([&] {
    create(out, [&] {
      return std::make_shared<ModelLayoutObject>(models::layout(read_model(model), read_spec_options(options)));
    });
  });
}

stateport_status stateport_model_layout_from_config(const char* config, size_t config_bytes,
                                                    const stateport_spec_options* options,
                                                    stateport_model_layout** out) {
  return guarded([&] {
    create(out, [&] {
      return std::make_shared<ModelLayoutObject>(
          models::layout(read_config(config, config_bytes), read_spec_options(options)));
    });
  });
}

stateport_status stateport_model_layout_destroy(stateport_model_layout* layout) {
  return guarded([&] { destroy<ModelLayoutObject>(layout, "layout"); });
}

stateport_status stateport_model_layout_fingerprint(stateport_model_layout* layout, uint64_t* out) {
  return guarded([&] {
    const Held<ModelLayoutObject> held(layout, "layout");
    checked(out, "out") = held->layout.fingerprint();
  });
}

stateport_status stateport_model_layout_spec(stateport_model_layout* layout, const stateport_shard* shard,
                                             stateport_spec** out) {
  return guarded([&] {
    const Held<ModelLayoutObject> held(layout, "layout");
    create(out, [&] {
      require(shard != nullptr, "shard", "null", "must point to a shard");
      return std::make_shared<SpecObject>(held->layout.spec_of(from_c(*shard)));
    });
  });
}
