// SPDX-License-Identifier: Apache-2.0
// Integrity checks of the checkpoints in a device's stores.
#include <stateport/c/integrity.h>
#include <stateport/kernels/state_integrity.hpp>

#include "arguments.hpp"
#include "copies.hpp"
#include "guard.hpp"
#include "state_checks.hpp"
#include "store_object.hpp"

#include <memory>
#include <utility>
#include <vector>

using namespace stateport;
using namespace stateport::c;

namespace {

using Stores = std::vector<std::shared_ptr<StoreObject>>;

std::vector<const StateStore*> addresses(const Stores& stores) {
  std::vector<const StateStore*> result;
  for (const auto& store : stores) result.push_back(&store->store);
  return result;
}

struct IntegrityObject final : Object {
  static constexpr Kind kind = Kind::integrity;
  IntegrityObject(Stores of, const IntegrityOptions& options)
      : Object(kind), stores(std::move(of)), integrity(addresses(stores), options) {
    const auto most = static_cast<std::size_t>(options.checks_max);
    checks.reserve(most);
    faults.reserve(most);
  }

  Stores stores;
  StateIntegrity integrity;
  std::vector<StateCheck> checks;
  std::vector<SlotCopy> plan;
  std::vector<stateport_state_fault> faults;  ///< that the last poll answered
};

using HeldIntegrity = Held<IntegrityObject>;

}  // namespace

stateport_status stateport_integrity_create(stateport_store* const* stores, size_t count,
                                            const stateport_integrity_options* options, stateport_integrity** out) {
  return guarded([&] {
    create(out, [&] {
      const auto given = read_optional_struct(options, "options");
      IntegrityOptions wanted;
      if (given.checks_max != 0) wanted.checks_max = given.checks_max;
      Stores of;
      for (stateport_store* const store : array(stores, count, "stores"))
        of.push_back(find<StoreObject>(store, "stores"));
      return std::make_shared<IntegrityObject>(std::move(of), wanted);
    });
  });
}

stateport_status stateport_integrity_destroy(stateport_integrity* integrity) {
  return guarded([&] { destroy<IntegrityObject>(integrity, "integrity"); });
}

stateport_status stateport_integrity_begin(stateport_integrity* integrity, void* stream,
                                           const stateport_state_check* checks, size_t count) {
  return guarded([&] {
    const HeldIntegrity held(integrity, "integrity");
    held->checks.clear();
    for (const stateport_state_check& check : array(checks, count, "checks"))
      held->checks.push_back(from_c(check, "checks.kind"));
    held->integrity.begin(Stream::from_native(stream), held->checks);
  });
}

stateport_status stateport_integrity_copy(stateport_integrity* integrity, void* stream, stateport_copier* copier,
                                          const stateport_slot_copy* copies, size_t count, int32_t group) {
  return guarded([&] {
    const HeldIntegrity held(integrity, "integrity");
    const Held<CopierObject> copying(copier, "copier");
    held->integrity.copy_slots(Stream::from_native(stream), copying->copier, read_plan(copies, count, held->plan),
                               group);
  });
}

stateport_status stateport_integrity_end(stateport_integrity* integrity, void* stream) {
  return guarded([&] { HeldIntegrity(integrity, "integrity")->integrity.end(Stream::from_native(stream)); });
}

stateport_status stateport_integrity_poll(stateport_integrity* integrity, const stateport_state_fault** faults,
                                          size_t* count) {
  return guarded([&] {
    const HeldIntegrity held(integrity, "integrity");
    const stateport_state_fault*& reported = checked(faults, "faults");
    std::size_t& reported_count = checked(count, "count");
    to_c(held->integrity.poll(), held->faults);
    reported = held->faults.data();
    reported_count = held->faults.size();
  });
}

stateport_status stateport_integrity_wait(stateport_integrity* integrity, void* stream) {
  return guarded([&] { HeldIntegrity(integrity, "integrity")->integrity.wait(Stream::from_native(stream)); });
}
