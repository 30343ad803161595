// SPDX-License-Identifier: Apache-2.0
// Checkpoints found by block table.
#include <stateport/c/align.h>

#include <stateport/kernels/align_context.hpp>

#include "align_options.hpp"
#include "arguments.hpp"
#include "guard.hpp"
#include "store_object.hpp"

using namespace stateport;
using namespace stateport::c;

namespace {

struct AlignObject final : Object {
  static constexpr Kind kind = Kind::align;
  explicit AlignObject(AlignOptions&& options) : Object(kind), context(std::move(options)) {}

  std::vector<std::shared_ptr<StoreObject>> bound;  ///< they must outlive the binding
  AlignContext context;
  std::vector<StagedRequest> staged;
};

/// The call of a function of AlignContext that works on a batch in device memory.
stateport_status run(stateport_align* align, void* stream, const stateport_align_batch* batch,
                     void (AlignContext::*step)(const Stream&, const AlignDeviceBatch&)) {
  return guarded([&] {
    const Held<AlignObject> held(align, "align");
    const auto given = read_struct<stateport_align_batch>(batch, "batch");
    (held->context.*step)(Stream::from_native(stream),
                          {given.request, given.computed, given.scheduled, given.drafts, given.rows});
  });
}

void read_host_batch(const stateport_align_batch& host, std::vector<StagedRequest>& rows) {
  require(host.rows >= 0, "rows", host.rows, "must not be negative");
  const auto count = static_cast<std::size_t>(host.rows);
  const auto request = array(host.request, count, "request");
  const auto computed = array(host.computed, count, "computed");
  const auto scheduled = array(host.scheduled, count, "scheduled");
  rows.clear();
  for (std::size_t row = 0; row < count; ++row)
    rows.push_back({.request = RequestIndex{request[row]},
                    .computed = computed[row],
                    .scheduled = scheduled[row],
                    .drafts = host.drafts == nullptr ? 0 : host.drafts[row]});
}

}  // namespace

stateport_status stateport_align_create(const stateport_align_options* options, stateport_align** out) {
  return guarded([&] { create(out, [&] { return std::make_shared<AlignObject>(read_align_options(options)); }); });
}

stateport_status stateport_align_destroy(stateport_align* align) {
  return guarded([&] { destroy<AlignObject>(align, "align"); });
}

stateport_status stateport_align_bind(stateport_align* align, const stateport_align_binding* groups, size_t count) {
  return guarded([&] {
    const Held<AlignObject> held(align, "align");
    std::vector<std::shared_ptr<StoreObject>> stores;
    std::vector<AlignBinding> bindings;
    for (const stateport_align_binding& group : read_structs(groups, count, "groups")) {
      stores.push_back(find<StoreObject>(group.store, "store"));
      bindings.push_back({&stores.back()->store, group.block_table, group.row_stride, group.columns});
    }
    held->context.bind(bindings);
    held->bound.swap(stores);
  });
}

stateport_status stateport_align_add_request(stateport_align* align, void* stream, int32_t request, int64_t computed) {
  return guarded([&] {
    Held<AlignObject>(align, "align")
        ->context.add_request(Stream::from_native(stream), RequestIndex{request}, computed);
  });
}

stateport_status stateport_align_forget(stateport_align* align, void* stream, int32_t request) {
  const RequestIndex id{request};
  return guarded([&] { Held<AlignObject>(align, "align")->context.forget(Stream::from_native(stream), {&id, 1}); });
}

stateport_status stateport_align_stage(stateport_align* align, void* stream, const stateport_align_batch* host,
                                       stateport_align_batch* out) {
  return guarded([&] {
    const Held<AlignObject> held(align, "align");
    const Out result(out, "out");
    read_host_batch(read_struct<stateport_align_batch>(host, "host"), held->staged);
    const AlignDeviceBatch batch = held->context.stage(Stream::from_native(stream), held->staged);
    result.write({.request = batch.request,
                  .computed = batch.computed,
                  .scheduled = batch.scheduled,
                  .drafts = batch.drafts,
                  .rows = batch.rows});
  });
}

stateport_status stateport_align_pre_step(stateport_align* align, void* stream, const stateport_align_batch* batch) {
  return run(align, stream, batch, &AlignContext::pre_step);
}
stateport_status stateport_align_post_step(stateport_align* align, void* stream, const stateport_align_batch* batch) {
  return run(align, stream, batch, &AlignContext::post_step);
}
stateport_status stateport_align_post_step_advanced(stateport_align* align, void* stream,
                                                    const stateport_align_batch* batch) {
  return run(align, stream, batch, &AlignContext::post_step_advanced);
}

stateport_status stateport_align_scatter_accepted(stateport_align* align, void* stream, const int32_t* request,
                                                  const int32_t* sampled, int32_t rows) {
  return guarded([&] {
    Held<AlignObject>(align, "align")->context.scatter_accepted(Stream::from_native(stream), request, sampled, rows);
  });
}

stateport_status stateport_align_gather_decode(stateport_align* align, void* stream, int32_t group,
                                               const stateport_align_batch* batch, const uint8_t* decode,
                                               int32_t padded_rows, int32_t* accepted, int32_t* draft_counts) {
  return guarded([&] {
    const Held<AlignObject> held(align, "align");
    const auto given = read_struct<stateport_align_batch>(batch, "batch");
    held->context.gather_decode(Stream::from_native(stream), group,
                                {given.request, given.computed, given.scheduled, given.drafts, given.rows}, decode,
                                padded_rows, accepted, draft_counts);
  });
}

stateport_status stateport_align_group_arrays(stateport_align* align, int32_t group, stateport_align_arrays* out) {
  return guarded([&] {
    const Held<AlignObject> held(align, "align");
    const AlignContext& context = held->context;
    Out(out, "out")
        .write({.columns = context.columns(group),
                .accepted = context.accepted(group),
                .src_columns = context.src_columns(group),
                .src_offsets = context.src_offsets(group)});
  });
}
