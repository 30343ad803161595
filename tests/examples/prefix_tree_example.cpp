// SPDX-License-Identifier: Apache-2.0
// An engine's loop around the prefix tree, as the README shows it. States are lists of tokens here: what a forward pass
// leaves in a slot is what it has read.
#include <stateport/core/pool/kv_page_pool.hpp>
#include <stateport/core/serve/tree_requests.hpp>
#include <stateport/core/tree/prefix_tree.hpp>

#include <cstdio>
#include <map>
#include <stdexcept>
#include <vector>

namespace {

using stateport::SlotCopy;
using stateport::SlotId;
using stateport::Token;

/// Stands for the engine's StateStore and its forward pass.
struct Engine {
  void copy(const SlotCopy& copy) { states[SlotId{copy.dst_slot}] = states.at(SlotId{copy.src_slot}); }
  void clear(SlotId slot) { states[slot].clear(); }
  void forward(SlotId live, std::span<const Token> tokens) {
    states[live].insert(states[live].end(), tokens.begin(), tokens.end());
    computed += tokens.size();
  }
  std::map<SlotId, std::vector<Token>> states;
  std::size_t computed = 0;
};

void expect(bool ok, const char* what) {
  if (!ok) throw std::runtime_error(what);
}

// readme: prefix tree
/// Serves one prompt with the tree alone; returns how many of its tokens were not computed again.
std::int64_t serve(stateport::PrefixTree& cache, stateport::KvPagePool& kv, Engine& engine,
                   const std::vector<Token>& prompt) {
  stateport::Freed freed;
  std::vector<stateport::KvIndex> row(prompt.size());
  const auto context = std::span(prompt).first(prompt.size() - 1);  // the pass needs the last token

  // The deepest cached state, a live slot to copy it to, and a lock until the prompt is computed.
  const stateport::PrefixMatch hit = cache.match_with_live_slot(context, {}, row, {}, freed);
  const stateport::PrefixLock lock = cache.lock(hit);
  SlotId live = hit.live_slot;
  if (!live.valid()) expect(cache.allocate_slots({&live, 1}), "no slot: evict states first");
  if (hit.slot.valid())
    engine.copy(hit.restore_into(live));
  else
    engine.clear(live);

  // Compute the rest, then donate the live state as a checkpoint of the whole prompt.
  const auto reused = static_cast<std::size_t>(hit.tokens);
  expect(kv.allocate(std::span(row).subspan(reused)), "no KV: evict tokens first");
  engine.forward(live, std::span(prompt).subspan(reused));
  cache.tag_slot(live, cache.state_tag(prompt));
  const stateport::InsertResult kept =
      cache.insert({.tokens = prompt, .kv = row, .slot = live, .prev_tokens = hit.tokens}, freed);
  if (kept.state_exists) cache.release_slots({&live, 1});
  kv.release(freed.kv);
  return hit.tokens;
}
// readme end

// readme: request cache
/// Serves one prompt with TreeRequests, which takes, keeps and gives back KV and slots itself.
void serve(stateport::TreeRequests& requests, Engine& engine, const std::vector<Token>& prompt,
           const std::vector<Token>& answer) {
  stateport::Freed freed;
  const auto started = requests.start(prompt, {}, freed);
  if (!started) throw std::runtime_error("no slot: run this request later");
  const stateport::RequestId request = started->request;
  const auto prompt_tokens = static_cast<std::int64_t>(prompt.size());

  const auto plan = requests.extend(request, prompt_tokens, freed);
  if (!plan) throw std::runtime_error("no KV: finish or preempt a request");
  if (plan->restore) engine.copy(*plan->restore);
  if (plan->clear) engine.clear(*plan->clear);
  engine.forward(started->live_slot, std::span(prompt).subspan(static_cast<std::size_t>(plan->start)));
  const auto cached = requests.cache_unfinished(request, false, freed);
  if (cached.checkpoint && cached.adopted) engine.copy(*cached.checkpoint);

  // The pass over the prompt has sampled the first token; each further pass feeds the last one.
  requests.append(request, std::span(answer).first(1), freed);
  for (std::size_t i = 1; i < answer.size(); ++i) {
    if (!requests.plan_decode(request, 0, freed)) throw std::runtime_error("no KV: finish or preempt a request");
    engine.forward(started->live_slot, std::span(answer).subspan(i - 1, 1));
    requests.append(request, std::span(answer).subspan(i, 1), freed);
  }
  requests.finish(request, freed);
}
// readme end

}  // namespace

int main() {
  constexpr std::int32_t slots = 8;
  Engine engine;
  {
    stateport::PrefixTree cache({.page_size = 1, .slots = slots});
    stateport::KvPagePool kv(1000, 1);
    expect(serve(cache, kv, engine, {1, 2, 3, 4, 5}) == 0, "an empty cache was hit");
    expect(serve(cache, kv, engine, {1, 2, 3, 4, 5, 6, 7}) == 5, "the first prompt was not found");
    expect(engine.computed == 7, "a cached token was computed again");
    expect(kv.available() + cache.sizes().total_tokens() == kv.capacity(), "KV was lost");
    cache.check_invariants();
  }
  {
    stateport::PrefixTree cache({.page_size = 1, .slots = slots});
    stateport::KvPagePool kv(1000, 1);
    stateport::TreeRequests requests(cache, kv, {.style = stateport::CheckpointStyle::copy_live});
    engine = {};
    serve(requests, engine, {1, 2, 3}, {4, 5, 6});
    serve(requests, engine, {1, 2, 3, 4, 5, 9}, {7});
    expect(engine.computed == 3 + 2 + 1, "the first turn was not found");
    for (const stateport::NodeInfo& node : cache.nodes())
      if (node.slot.valid())
        expect(engine.states.at(node.slot).size() == static_cast<std::size_t>(node.end_tokens), "a wrong state");
    requests.check_invariants();
  }
  std::puts("ok");
  return 0;
}
