// SPDX-License-Identifier: Apache-2.0
// An engine's loop around the life cycle over a prefix tree, as the README beside shows it. States are lists of tokens
// here: what a forward pass leaves in a slot is what it has read.
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

// readme: tree requests
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
  Engine engine;
  stateport::PrefixTree cache({.page_size = 1, .slots = 8});
  stateport::KvPagePool kv(1000, 1);
  stateport::TreeRequests requests(cache, kv, {.style = stateport::CheckpointStyle::copy_live});
  serve(requests, engine, {1, 2, 3}, {4, 5, 6});
  serve(requests, engine, {1, 2, 3, 4, 5, 9}, {7});
  expect(engine.computed == 3 + 2 + 1, "the first turn was not found");
  for (const stateport::NodeInfo& node : cache.nodes())
    if (node.slot.valid())
      expect(engine.states.at(node.slot).size() == static_cast<std::size_t>(node.end_tokens), "a wrong state");
  requests.check_invariants();
  std::puts("ok");
  return 0;
}
