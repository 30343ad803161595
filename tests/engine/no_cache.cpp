// SPDX-License-Identifier: Apache-2.0
#include "no_cache.hpp"

namespace stateport::engine {

bool NoCache::start(Sequence& sequence) {
  counts_.lookup_tokens += sequence.known();
  sequence.computed = 0;
  states_[sequence.slot].clear();
  return true;
}

bool NoCache::plan(std::span<Row> rows) {
  for (Row& row : rows) {
    std::vector<KvIndex>& kv = row.sequence->kv;
    row.start = row.sequence->computed;
    const auto held = kv.size();
    const auto wanted = static_cast<std::size_t>(row.start + row.scheduled);
    row.room = true;
    if (wanted <= held) continue;
    kv.resize(wanted);
    row.room = kv_.allocate(std::span(kv).subspan(held));
    if (!row.room) kv.resize(held);
  }
  return true;
}

/// Drops the states of rejected drafts, and all states that no later pass reads.
void NoCache::after_forward(std::span<const Row> rows, std::span<Row>) {
  for (const Row& row : rows) {
    if (row.sequence == nullptr) continue;
    auto& states = states_[row.sequence->slot];
    const ModelState last = states[row.end()];
    states.clear();
    states[row.end()] = last;
  }
}

void NoCache::stop(Sequence& sequence, RequestEnd) {
  kv_.release(sequence.kv);
  sequence.kv.clear();
}

}  // namespace stateport::engine
