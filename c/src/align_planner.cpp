// SPDX-License-Identifier: Apache-2.0
// Checkpoints found by block table, planned on the host.
#include <stateport/c/align_planner.h>
#include <stateport/parts/align_planner.hpp>

#include "align_options.hpp"
#include "arguments.hpp"
#include "copies.hpp"
#include "guard.hpp"
#include "handle_table.hpp"

#include <algorithm>
#include <limits>

using namespace stateport;
using namespace stateport::c;

namespace {

struct AlignPlannerObject final : Object {
  static constexpr Kind kind = Kind::align_planner;
  explicit AlignPlannerObject(AlignOptions&& options)
      : Object(kind), planner(std::move(options)), plans(planner.options().groups.size()) {}

  AlignPlanner planner;
  std::vector<std::vector<stateport_slot_copy>> plans;  ///< by group, the answer of stateport_align_planner_plan
  std::vector<RequestIndex> requests;
};

using HeldPlanner = Held<AlignPlannerObject>;

std::vector<BlockTable> read_tables(const stateport_block_table* tables, std::size_t count) {
  std::vector<BlockTable> result;
  for (const stateport_block_table& table : read_structs(tables, count, "tables"))
    result.push_back({array(table.ids, table.id_count, "ids"), table.row_stride, table.columns});
  return result;
}

/// The arrays of a batch. Those that a step does not read may be null for it.
struct BatchArrays {
  stateport_align_batch given;
  std::size_t rows;

  explicit BatchArrays(const stateport_align_batch* batch) : given(read_struct<stateport_align_batch>(batch, "batch")) {
    require(given.rows >= 0, "rows", given.rows, "must not be negative");
    rows = static_cast<std::size_t>(given.rows);
  }
  [[nodiscard]] std::span<const std::int32_t> request() const { return array(given.request, rows, "request"); }
  [[nodiscard]] std::span<const std::int32_t> computed() const { return array(given.computed, rows, "computed"); }
  [[nodiscard]] AlignBatch whole() const {
    return {.request = request(),
            .computed = computed(),
            .scheduled = array(given.scheduled, rows, "scheduled"),
            .drafts = {given.drafts, given.drafts == nullptr ? 0 : rows}};
  }
};

/// Calls `decide(planner, batch, tables)` and answers its plan.
template <class Decide>
stateport_status step(stateport_align_planner* planner, const stateport_align_batch* batch,
                      const stateport_block_table* tables, std::size_t count, stateport_align_step* out,
                      Decide&& decide) {
  return guarded([&] {
    const HeldPlanner held(planner, "planner");
    const BatchArrays arrays(batch);
    const auto rows = read_tables(tables, count);
    const Out result(out, "out");
    const AlignStep done = decide(held->planner, arrays, rows);
    result.write({.copies = done.copies, .skipped_parts = done.skipped_parts});
  });
}

/// The publication check of a group, and the blocks that a call names. Refuses, before anything is changed, the blocks
/// that the check would refuse.
struct NamedBlocks {
  std::span<const std::int32_t> blocks;
  PublicationCheck& publication;

  NamedBlocks(AlignPlanner& planner, std::int32_t group, const std::int32_t* ids, std::size_t count)
      : blocks(array(ids, count, "blocks")), publication(planner.publication(group)) {
    for (const std::int32_t block : blocks)
      require(block >= 1 && block < publication.blocks(), "blocks", block, "is not a block that can hold a state");
  }
};

}  // namespace

stateport_status stateport_align_planner_create(const stateport_align_options* options, stateport_align_planner** out) {
  return guarded(
      [&] { create(out, [&] { return std::make_shared<AlignPlannerObject>(read_align_options(options)); }); });
}

stateport_status stateport_align_planner_destroy(stateport_align_planner* planner) {
  return guarded([&] { destroy<AlignPlannerObject>(planner, "planner"); });
}

stateport_status stateport_align_planner_add_requests(stateport_align_planner* planner, const int32_t* requests,
                                                      const int64_t* computed, size_t count) {
  return guarded([&] {
    const HeldPlanner held(planner, "planner");
    const auto named = array(requests, count, "requests");
    const auto counts = array(computed, count, "computed");
    for (const std::int32_t request : named)
      require(request >= 0 && request < held->planner.options().max_requests, "requests", request,
              "is not a request slot");
    for (const std::int64_t tokens : counts)
      require(tokens >= 0 && tokens <= std::numeric_limits<std::int32_t>::max(), "computed", tokens,
              "must be a 32-bit count");
    for (std::size_t i = 0; i < count; ++i) held->planner.add_request(RequestIndex{named[i]}, counts[i]);
  });
}

stateport_status stateport_align_planner_forget(stateport_align_planner* planner, const int32_t* requests,
                                                size_t count) {
  return guarded([&] {
    const HeldPlanner held(planner, "planner");
    held->planner.forget(read_ids(requests, count, "requests", held->requests), {}, {});
  });
}

stateport_status stateport_align_planner_pre_step(stateport_align_planner* planner, const stateport_align_batch* batch,
                                                  const stateport_block_table* tables, size_t table_count,
                                                  stateport_align_step* out) {
  return step(planner, batch, tables, table_count, out,
              [](AlignPlanner& to, const BatchArrays& arrays, std::span<const BlockTable> rows) {
                return to.pre_step(arrays.whole(), rows);
              });
}

stateport_status stateport_align_planner_accept(stateport_align_planner* planner, const int32_t* request,
                                                const int32_t* sampled, size_t rows) {
  return guarded([&] {
    const HeldPlanner held(planner, "planner");
    held->planner.accept(array(request, rows, "request"), array(sampled, rows, "sampled"));
  });
}

stateport_status stateport_align_planner_post_step(stateport_align_planner* planner, const stateport_align_batch* batch,
                                                   const stateport_block_table* tables, size_t table_count,
                                                   stateport_align_step* out) {
  return step(planner, batch, tables, table_count, out,
              [](AlignPlanner& to, const BatchArrays& arrays, std::span<const BlockTable> rows) {
                return to.post_step(arrays.whole(), rows);
              });
}

stateport_status stateport_align_planner_post_step_advanced(stateport_align_planner* planner,
                                                            const stateport_align_batch* batch,
                                                            const stateport_block_table* tables, size_t table_count,
                                                            stateport_align_step* out) {
  return step(planner, batch, tables, table_count, out,
              [](AlignPlanner& to, const BatchArrays& arrays, std::span<const BlockTable> rows) {
                return to.post_step_advanced(arrays.request(), arrays.computed(), rows);
              });
}

stateport_status stateport_align_planner_plan(stateport_align_planner* planner, int32_t group,
                                              const stateport_slot_copy** copies, size_t* count) {
  return guarded([&] {
    const HeldPlanner held(planner, "planner");
    const stateport_slot_copy*& to = checked(copies, "copies");
    std::size_t& reported = checked(count, "count");
    const CopyPlan plan = held->planner.plan(group);
    auto& kept = held->plans[static_cast<std::size_t>(group)];
    to_c(plan, kept);
    to = kept.data();
    reported = kept.size();
  });
}

stateport_status stateport_align_planner_arrays(stateport_align_planner* planner, int32_t group,
                                                stateport_align_arrays* out) {
  return guarded([&] {
    const HeldPlanner held(planner, "planner");
    const AlignPlanner& from = held->planner;
    Out(out, "out").write({.columns = from.columns(group).data(), .accepted = from.accepted(group).data()});
  });
}

stateport_status stateport_align_planner_gather_accepted(stateport_align_planner* planner, int32_t group,
                                                         const int32_t* request, size_t rows, int32_t* out) {
  return guarded([&] {
    const HeldPlanner held(planner, "planner");
    held->planner.gather_accepted(group, array(request, rows, "request"), array(out, rows, "out"));
  });
}

stateport_status stateport_align_planner_retention(stateport_align_planner* planner, int32_t group,
                                                   int64_t start_column, const int64_t* boundaries,
                                                   size_t boundary_count, uint8_t* keep, size_t columns) {
  return guarded([&] {
    const HeldPlanner held(planner, "planner");
    held->planner.fill_retention(group, start_column, array(boundaries, boundary_count, "boundaries"),
                                 array(keep, columns, "keep"));
  });
}

stateport_status stateport_align_planner_checkpoint_in(stateport_align_planner* planner, int32_t group,
                                                       const stateport_chunk_checkpoint* chunk, int32_t* column,
                                                       int64_t* offset) {
  return guarded([&] {
    const HeldPlanner held(planner, "planner");
    const auto given = read_struct<stateport_chunk_checkpoint>(chunk, "chunk");
    std::int32_t& at = checked(column, "column");
    std::int64_t& tokens = checked(offset, "offset");
    const PrefillCheckpoint found = held->planner.checkpoint_in(group, {.start = given.start,
                                                                        .end = given.end,
                                                                        .position = given.position,
                                                                        .hash_block = given.hash_block,
                                                                        .alignment = given.alignment});
    at = found.valid() ? found.column : STATEPORT_NONE;
    tokens = found.offset;
  });
}

stateport_status stateport_align_planner_publish(stateport_align_planner* planner, int32_t group, const int32_t* blocks,
                                                 const int64_t* tokens, size_t count, uint8_t* published) {
  return guarded([&] {
    const HeldPlanner held(planner, "planner");
    const auto wanted = array(tokens, count, "tokens");
    const auto answers = array(published, count, "published");
    const NamedBlocks named(held->planner, group, blocks, count);
    for (std::size_t i = 0; i < count; ++i)
      answers[i] = named.publication.publish(BlockId{named.blocks[i]}, wanted[i]) ? 1 : 0;
  });
}

stateport_status stateport_align_planner_wrote(stateport_align_planner* planner, int32_t group, const int32_t* blocks,
                                               const int64_t* tokens, size_t count) {
  return guarded([&] {
    const HeldPlanner held(planner, "planner");
    const auto held_tokens = array(tokens, count, "tokens");
    for (const std::int64_t value : held_tokens)
      require(value >= PublicationCheck::unknown, "tokens", value, "must be a count, or -1 for unknown");
    const NamedBlocks named(held->planner, group, blocks, count);
    for (std::size_t i = 0; i < count; ++i) named.publication.wrote(BlockId{named.blocks[i]}, held_tokens[i]);
  });
}

stateport_status stateport_align_planner_check(stateport_align_planner* planner) {
  return guarded([&] { HeldPlanner(planner, "planner")->planner.check_invariants(); });
}
