// SPDX-License-Identifier: Apache-2.0
// Stores and copiers.
#include <stateport/c/store.h>

#include <stateport/backends/callback_resource.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "arguments.hpp"
#include "guard.hpp"
#include "store_object.hpp"

#include <optional>

using namespace stateport;
using namespace stateport::c;

namespace {

static_assert(STATEPORT_LAYER_MAJOR == static_cast<int>(StoreLayout::layer_major) &&
              STATEPORT_SLOT_MAJOR == static_cast<int>(StoreLayout::slot_major));

std::unique_ptr<MemoryResource> resource_of(const stateport_store_options& options) {
  if (options.allocate == nullptr && options.deallocate == nullptr) return std::make_unique<DeviceResource>();
  return std::make_unique<CallbackResource>(CallbackResource::Callbacks{
      .allocate = options.allocate, .deallocate = options.deallocate, .context = options.context});
}

std::vector<StateTensorView> views_of(const StateSpec& spec, const stateport_tensor_memory* tensors,
                                      std::size_t count) {
  require(count == spec.tensors().size(), "count", count, "must be the number of tensors of the spec");
  std::vector<StateTensorView> views;
  for (const stateport_tensor_memory& memory : read_structs(tensors, count, "tensors"))
    views.push_back({spec.tensors()[views.size()], static_cast<std::byte*>(memory.base), memory.slot_stride_bytes});
  return views;
}

using Layers = std::optional<LayerRange>;  ///< none: all of them

/// No caller can name the number that stands for all layers in C++: no store has that many.
LayerRange range_of(const Layers& layers) {
  if (!layers) return all_layers;
  require(layers->end != all_layers.end, "layers.end", layers->end, "must be at most the number of layers");
  return *layers;
}

stateport_status copy(stateport_copier* copier, void* stream, const stateport_slot_copy* copies, std::size_t count,
                      const Layers& layers, void (SlotCopier::*how)(const Stream&, CopyPlan, LayerRange)) {
  return guarded([&] {
    const Held<CopierObject> held(copier, "copier");
    (held->copier.*how)(Stream::from_native(stream), read_plan(copies, count, held->plan), range_of(layers));
  });
}

stateport_status copy_on_device(stateport_copier* copier, void* stream, const stateport_slot_copy* copies,
                                std::int32_t count, const Layers& layers) {
  return guarded([&] {
    const Held<CopierObject> held(copier, "copier");
    require(copies != nullptr || count == 0, "copies", "null", "must point to device memory");
    // The kernel reads either struct: the two have one layout.
    const void* const plan = copies;
    held->copier.copy_slots_on_device(Stream::from_native(stream), static_cast<const SlotCopy*>(plan), count,
                                      range_of(layers));
  });
}

struct CopyList {
  const stateport_slot_copy* copies;
  std::size_t count;
};

stateport_status commit_scratch(stateport_copier* copier, void* stream, const CopyList& intermediates,
                                const CopyList& ends, const Layers& layers) {
  return guarded([&] {
    const Held<CopierObject> held(copier, "copier");
    const CopyPlan from_scratch = read_plan(intermediates.copies, intermediates.count, held->plan, "intermediates");
    held->copier.commit_scratch(Stream::from_native(stream), from_scratch,
                                read_plan(ends.copies, ends.count, held->second_plan, "ends"), range_of(layers));
  });
}

}  // namespace

stateport_status stateport_store_create(stateport_spec* spec, const stateport_store_options* options, void* stream,
                                        stateport_store** out) {
  return guarded([&] {
    create(out, [&] {
      const Held<SpecObject> held(spec, "spec");
      const auto given = read_struct<stateport_store_options>(options, "options");
      const StoreOptions wanted{.slots = given.slots,
                                .layout = enumerator(given.layout, StoreLayout::slot_major, "layout")};
      return std::make_shared<StoreObject>(resource_of(given), held->spec, wanted, Stream::from_native(stream));
    });
  });
}

stateport_status stateport_store_view(stateport_spec* spec, const stateport_tensor_memory* tensors, size_t count,
                                      int32_t slots, stateport_store** out) {
  return guarded([&] {
    create(out, [&] {
      const Held<SpecObject> held(spec, "spec");
      return std::make_shared<StoreObject>(StateStore::view(views_of(held->spec, tensors, count), slots));
    });
  });
}

stateport_status stateport_store_destroy(stateport_store* store) {
  return guarded([&] { destroy<StoreObject>(store, "store"); });
}

stateport_status stateport_store_tensor(stateport_store* store, size_t index, stateport_tensor_memory* out) {
  return guarded([&] {
    const Held<StoreObject> held(store, "store");
    const auto tensors = held->store.tensors();
    require(index < tensors.size(), "index", index, "must be below the number of tensors");
    Out(out, "out").write({.base = tensors[index].base, .slot_stride_bytes = tensors[index].slot_stride_bytes});
  });
}

stateport_status stateport_store_copy(stateport_store* store, void* stream, const stateport_slot_copy* copies,
                                      size_t count) {
  return guarded([&] {
    const Held<StoreObject> held(store, "store");
    held->copier().copy_slots(Stream::from_native(stream), read_plan(copies, count, held->plan));
  });
}

stateport_status stateport_store_clear(stateport_store* store, void* stream, const int32_t* slots, size_t count) {
  return guarded([&] {
    const Held<StoreObject> held(store, "store");
    held->copier().clear_slots(Stream::from_native(stream), read_ids(slots, count, "slots", held->slots));
  });
}

stateport_status stateport_copier_create(stateport_store* source, stateport_store* destination,
                                         stateport_copier** out) {
  return guarded([&] {
    create(out, [&] {
      auto from = find<StoreObject>(source, "source");
      return std::make_shared<CopierObject>(std::move(from), find<StoreObject>(destination, "destination"));
    });
  });
}

stateport_status stateport_copier_destroy(stateport_copier* copier) {
  return guarded([&] { destroy<CopierObject>(copier, "copier"); });
}

stateport_status stateport_copier_copy(stateport_copier* copier, void* stream, const stateport_slot_copy* copies,
                                       size_t count) {
  return copy(copier, stream, copies, count, {}, &SlotCopier::copy_slots);
}
stateport_status stateport_copier_copy_layers(stateport_copier* copier, void* stream, const stateport_slot_copy* copies,
                                              size_t count, int32_t begin, int32_t end) {
  return copy(copier, stream, copies, count, LayerRange{begin, end}, &SlotCopier::copy_slots);
}

stateport_status stateport_copier_copy_shifted(stateport_copier* copier, void* stream,
                                               const stateport_slot_copy* copies, size_t count) {
  return copy(copier, stream, copies, count, {}, &SlotCopier::copy_shifted);
}
stateport_status stateport_copier_copy_shifted_layers(stateport_copier* copier, void* stream,
                                                      const stateport_slot_copy* copies, size_t count, int32_t begin,
                                                      int32_t end) {
  return copy(copier, stream, copies, count, LayerRange{begin, end}, &SlotCopier::copy_shifted);
}

stateport_status stateport_copier_copy_on_device(stateport_copier* copier, void* stream,
                                                 const stateport_slot_copy* copies, int32_t count) {
  return copy_on_device(copier, stream, copies, count, {});
}
stateport_status stateport_copier_copy_on_device_layers(stateport_copier* copier, void* stream,
                                                        const stateport_slot_copy* copies, int32_t count, int32_t begin,
                                                        int32_t end) {
  return copy_on_device(copier, stream, copies, count, LayerRange{begin, end});
}

stateport_status stateport_copier_create_scratch(stateport_store* scratch, stateport_store* live,
                                                 stateport_store* destination, stateport_copier** out) {
  return guarded([&] {
    create(out, [&] {
      auto from = find<StoreObject>(scratch, "scratch");
      auto with = find<StoreObject>(live, "live");
      return std::make_shared<CopierObject>(std::move(from), std::move(with),
                                            find<StoreObject>(destination, "destination"));
    });
  });
}

stateport_status stateport_copier_commit_scratch(stateport_copier* copier, void* stream,
                                                 const stateport_slot_copy* intermediates, size_t intermediate_count,
                                                 const stateport_slot_copy* ends, size_t end_count) {
  return commit_scratch(copier, stream, {intermediates, intermediate_count}, {ends, end_count}, {});
}
stateport_status stateport_copier_commit_scratch_layers(stateport_copier* copier, void* stream,
                                                        const stateport_slot_copy* intermediates,
                                                        size_t intermediate_count, const stateport_slot_copy* ends,
                                                        size_t end_count, int32_t begin, int32_t end) {
  return commit_scratch(copier, stream, {intermediates, intermediate_count}, {ends, end_count}, LayerRange{begin, end});
}
