// SPDX-License-Identifier: Apache-2.0
#include "no_cache.hpp"

namespace stateport::engine {

NoCache::NoCache(const CacheOptions& options) : kv_(options.kv_tokens, 1), states_(options, options.max_running) {}

bool NoCache::start(Sequence& sequence) {
  counts_.lookup_tokens += sequence.known();
  sequence.computed = 0;
  const SlotId live{sequence.slot};
  states_.clear({&live, 1});
  return true;
}

bool NoCache::reserve(const Row& row) {
  std::vector<KvIndex>& kv = row.sequence->kv;
  const auto held = kv.size();
  const auto wanted = static_cast<std::size_t>(row.start + row.scheduled);
  if (wanted <= held) return true;
  kv.resize(wanted);
  if (kv_.allocate(std::span(kv).subspan(held))) return true;
  kv.resize(held);
  return false;
}

void NoCache::after_forward(std::span<const Row> rows) {
  for (const Row& row : rows) states_.accept(row, live(row));
  states_.commit();
}

void NoCache::stop(Sequence& sequence, bool) {
  kv_.release(sequence.kv);
}

std::size_t NoCache::kv_indices() const {
  return static_cast<std::size_t>(kv_.capacity()) + 1;
}

}  // namespace stateport::engine
