// SPDX-License-Identifier: Apache-2.0
// The smallest use of a RequestCache: the second prompt begins as the first one, and most of it is not computed again.
#include <stateport/core.hpp>

#include <cstdint>
#include <cstdio>
#include <numeric>
#include <vector>

int main() {
  std::int64_t reused = 0, kept = 0;
  // docs: first hit
  const auto cache = stateport::make_request_cache({.index = stateport::CacheIndex::tree,
                                                    .layout = stateport::SlotLayout{.checkpoints = 64},
                                                    .max_requests = 8,
                                                    .max_request_tokens = 4096,
                                                    .kv_tokens = 1 << 16,
                                                    .unchecked_layout = true});
  for (const std::int64_t length : {200, 300}) {
    std::vector<stateport::Token> prompt(static_cast<std::size_t>(length));
    std::iota(prompt.begin(), prompt.end(), 0);
    const stateport::StartedRequest started = cache->start({.tokens = prompt}).value();  // none: no room
    while (const std::int64_t left = length - cache->computed(started.request)) {
      const std::int64_t tokens = cache->chunk(started.request, 64).tokens;
      const stateport::PassRow row{.request = started.request, .tokens = static_cast<std::int32_t>(tokens)};
      const stateport::PassPlan plan = cache->plan({&row, 1});
      // Clear the slots plan.groups[0].clear, copy plan.groups[0].copies, run the forward pass; then:
      const std::int32_t sampled = tokens == left ? 1 : 0;
      const stateport::Token token = 7;
      const auto commit = cache->commit(plan.pass, {&sampled, 1}, {&token, sampled ? 1u : 0u});
      kept += std::ssize(commit.groups[0].copies);  // to copy: live states become checkpoints
    }
    cache->finish(started.request);
    reused = started.reused_tokens;
    std::printf("%d of %d tokens were not computed again\n", int(reused), int(length));
  }
  // docs end
  return reused == 192 && kept > 0 ? 0 : 1;
}
