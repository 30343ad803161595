// SPDX-License-Identifier: Apache-2.0
// One memory for KV and states: long prompts need KV, many short ones need states, and memory follows.
#include <stateport/backends/elastic_resource.hpp>
#include <stateport/backends/runtime.hpp>
#include <stateport/core.hpp>
#include <stateport/kernels/elastic_store.hpp>
#include <stateport/kernels/memory_mover.hpp>

#include <array>
#include <cstdint>
#include <cstdio>
#include <vector>

using namespace stateport;

namespace {

constexpr std::int32_t block_tokens = 16;

/// A state, or a block of KV, of one granule of memory: real models have some of them in each layer.
StateSpec one_granule(std::size_t granularity) {
  return StateSpec::uniform(1, {}, {.shape = {static_cast<std::int64_t>(granularity / sizeof(float)), 1, 1}});
}

// docs: an arena
RequestCacheOptions options_of(const ElasticStore& kv, const ElasticStore& states, std::int64_t bytes,
                               RequestCacheOptions options) {
  SlotLayout layout = slot_layout(options);
  layout.layout_fingerprint = states.store().fingerprint();
  layout.arena = {.bytes = bytes, .kv = kv.extent(), .states = states.extent()};
  options.layout = layout;
  return options;
}

/// Carries out the memory plan of an answer, after its other work, and tells the cache of moves that have ended. Memory
/// that came back may go elsewhere at once.
void move_memory(RequestCache& cache, MemoryMover& mover, const MemoryPlan& plan, const Stream& stream) {
  mover.enqueue(plan, stream);
  std::array<MemoryMover::Settled, 16> settled;
  while (const std::size_t count = mover.poll(settled))
    for (const auto& [move, done] : std::span(settled).first(count)) cache.arena()->settle(move, done);
  if (const MemoryPlan next = cache.arena()->take(); !next.moves.empty()) move_memory(cache, mover, next, stream);
}
// docs end

struct Engine {
  RequestCache& cache;
  MemoryMover& mover;
  SlotCopier& states;
  const Stream& stream;

  void serve(Token name, std::int32_t tokens) {
    const std::vector<Token> prompt(static_cast<std::size_t>(tokens), name);
    const StartedRequest started = cache.start({.tokens = prompt}).value();
    const PassRow row{.request = started.request, .tokens = static_cast<std::int32_t>(tokens - started.reused_tokens)};
    PassPlan plan = cache.plan({&row, 1});
    while (plan.rows_without_room > 0) {  // memory is on its way
      move_memory(cache, mover, plan.memory, stream);
      cache.cancel(plan.pass);
      plan = cache.plan({&row, 1});
    }
    states.clear_slots(stream, plan.groups[0].clear);
    states.copy_slots(stream, plan.groups[0].copies);
    // Your model runs here, and samples nothing: these prompts have no answers.
    const std::int32_t sampled = 0;
    const PassCommit commit = cache.commit(plan.pass, {&sampled, 1}, {});
    states.copy_slots(stream, commit.groups[0].copies);
    move_memory(cache, mover, commit.memory, stream);
    cache.finish(started.request);
  }
};

}  // namespace

int main() {
  const Runtime runtime;
  RequestCacheOptions options{.index = CacheIndex::tree,
                              .layout = SlotLayout{.checkpoints = 96},
                              .max_requests = 2,
                              .max_request_tokens = 12 * block_tokens + 1,
                              .block_size_tokens = block_tokens,
                              .kv_tokens = 96 * block_tokens};
  // Addresses for the most of each, and memory for half of both.
  constexpr std::size_t granules = 96;
  ElasticResource probe({.limit_bytes = std::size_t{1} << 30});
  ElasticResource resource({.limit_bytes = granules * probe.granularity()});
  const StateSpec spec = one_granule(resource.granularity());
  ElasticStore kv(resource, spec, {.slots = kv_blocks(options)});
  ElasticStore states(resource, spec, {.slots = checkpoint_slots(options)});
  options.memory = {.state_bytes = states.extent().bytes, .kv_bytes_per_token = kv.extent().bytes / block_tokens};

  const auto cache = make_request_cache(options_of(kv, states, granules * resource.granularity(), options));
  MemoryMover mover(kv, states);
  mover.begin(*cache->arena());
  SlotCopier copier(states.store());
  const Stream stream = Stream::create();
  Engine engine{*cache, mover, copier, stream};

  std::array<std::int32_t, 2> kv_extents = {};
  for (const std::int32_t blocks : {12, 1}) {
    for (Token name = 0; name < 200; ++name) engine.serve(1000 * blocks + name, blocks * block_tokens + 1);
    stream.synchronize();
    std::printf("prompts of %2d blocks: %2d of %d granules are KV, %2d are states\n", int(blocks),
                int(kv.mapped_extents()), int(granules), int(states.mapped_extents()));
    kv_extents[blocks == 1] = kv.mapped_extents();
    if (resource.mapped_bytes() > resource.limit_bytes()) return 1;
  }
  return kv_extents[0] > kv_extents[1] + 10 ? 0 : 1;
}
