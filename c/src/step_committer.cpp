// SPDX-License-Identifier: Apache-2.0
#include <stateport/c/step_committer.h>
#include <stateport/kernels/step_committer.hpp>

#include "arguments.hpp"
#include "guard.hpp"
#include "store_object.hpp"

#include <memory>
#include <utility>
#include <vector>

using namespace stateport;
using namespace stateport::c;

namespace {

struct CommitterObject final : Object {
  static constexpr Kind kind = Kind::step_committer;
  CommitterObject(const std::vector<StepScratch>& scratch, std::shared_ptr<StoreObject> to, std::int32_t requests,
                  std::int32_t steps)
      : Object(kind), destination(std::move(to)), committer(scratch, destination->store, requests, steps) {}

  std::shared_ptr<StoreObject> destination;
  StepCommitter committer;
};

StepScratch from_c(const stateport_step_scratch& scratch) {
  return {.base = static_cast<const std::byte*>(scratch.base),
          .request_stride_bytes = scratch.request_stride_bytes,
          .step_stride_bytes = scratch.step_stride_bytes,
          .token_stride = scratch.token_stride,
          .channel_stride = scratch.channel_stride,
          .type = element_type(scratch.type)};
}

}  // namespace

stateport_status stateport_step_committer_create(const stateport_step_scratch* scratch, size_t count,
                                                 stateport_store* destination, int32_t requests, int32_t steps,
                                                 stateport_step_committer** out) {
  return guarded([&] {
    create(out, [&] {
      auto to = find<StoreObject>(destination, "destination");
      std::vector<StepScratch> given;
      for (const stateport_step_scratch& tensor : read_structs(scratch, count, "scratch"))
        given.push_back(from_c(tensor));
      return std::make_shared<CommitterObject>(given, std::move(to), requests, steps);
    });
  });
}

stateport_status stateport_step_committer_destroy(stateport_step_committer* committer) {
  return guarded([&] { destroy<CommitterObject>(committer, "committer"); });
}

stateport_status stateport_step_committer_commit(stateport_step_committer* committer, void* stream,
                                                 const stateport_step_targets* targets) {
  return guarded([&] {
    const Held<CommitterObject> held(committer, "committer");
    const auto given = read_struct<stateport_step_targets>(targets, "targets");
    held->committer.commit_step(Stream::from_native(stream), {.last_step = given.last_step,
                                                              .live_slot = given.live_slot,
                                                              .track_step = given.track_step,
                                                              .track_slot = given.track_slot,
                                                              .rows = given.rows});
  });
}
