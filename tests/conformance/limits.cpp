// SPDX-License-Identifier: Apache-2.0
#include "limits.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>

namespace stateport::conformance {
namespace {

struct Range {
  std::int64_t low = 0;
  std::int64_t high = 0;
};

constexpr std::int64_t number_max = std::int64_t{1} << 24;  // sums and small products of such numbers fit 32 or 64 bits
constexpr std::int64_t size_max = std::int64_t{1} << 17;
constexpr std::int64_t few = 4096;
constexpr std::int64_t token_max = std::int64_t{1} << 41;  // a token that is hashed may be wider than one of a tree

/// By field, or by "suite/field" where a suite means another thing by it. The rest: ±number_max.
const std::map<std::string, Range, std::less<>>& ranges() {
  static const std::map<std::string, Range, std::less<>> all = {
      // Divisors.
      {"block", {1, size_max}},
      {"block_size", {1, size_max}},
      {"chunk", {1, size_max}},
      {"hash_block", {1, size_max}},
      {"mamba_block", {1, size_max}},
      {"page", {1, size_max}},
      {"page_size", {1, size_max}},
      {"ring", {1, size_max}},
      {"shift", {1, size_max}},
      {"tiles", {1, size_max}},
      {"track_interval", {1, size_max}},
      {"tree_page", {1, size_max}},
      {"longest_state_hit/align", {1, size_max}},
      // In these suites a field `block` is the number of a block.
      {"commit/block", {-few, few}},
      {"fuzz_traces/block", {-few, few}},
      {"kv_block_allocator/block", {-few, few}},
      {"slot_allocator/block", {-few, few}},
      {"slot_allocator_hazards/block", {-few, few}},
      // Counts of loops, sizes of arrays.
      {"accepts", {0, few}},
      {"accept_per_step", {0, few}},
      {"budget", {1, size_max}},
      {"budgets", {1, size_max}},
      {"buffer_slots", {0, few}},
      {"cover", {0, size_max}},
      {"dim", {0, few}},
      {"draft_token_num", {0, few}},
      {"i", {0, few}},
      {"kernel_minus_1", {0, few}},
      {"kv_size", {0, size_max}},
      {"layer_start", {0, 256}},
      {"layers", {0, few}},
      {"live_slot", {0, few}},
      {"longest_state_hit/max_len", {0, few}},
      {"mamba_size", {1, few}},
      {"max_req", {0, few}},
      {"nb", {0, few}},
      {"n", {0, number_max}},
      {"nheads", {1, few}},
      {"ngroups", {1, few}},
      {"num_layers", {0, 256}},
      {"num_reqs", {1, few}},
      {"overlap_memmove/bytes", {0, 32768}},
      {"overlap_memmove/rows", {0, 128}},
      {"prev_prefix_len", {0, size_max}},
      {"prompt", {0, size_max}},
      {"prompt_len", {0, size_max}},
      {"query_lens", {0, few}},
      {"reachable_mask/end", {0, size_max}},
      {"reachable_mask/start", {0, size_max}},
      {"ref", {0, 64}},
      {"slots", {-few, few}},
      {"spec", {0, 64}},
      {"state_layers", {1, few}},
      {"step", {0, few}},
      {"tp_size", {1, few}},
      // Large ones, in no loop.
      {"budget_bytes", {0, token_max}},
      {"layer_bytes", {0, token_max}},
      {"per_slot_bytes", {0, token_max}},
      {"slot_bytes", {0, token_max}},
      {"tokens", {-token_max, token_max}},
  };
  return all;
}

Range range_of(std::string_view suite, std::string_view field) {
  auto found = ranges().find(std::string(suite) + "/" + std::string(field));
  if (found == ranges().end()) found = ranges().find(field);
  return found == ranges().end() ? Range{-number_max, number_max} : found->second;
}

/// As the block in {"ref": {"3": 1}}.
bool is_number(std::string_view key) {
  return !key.empty() && key.find_first_not_of("-0123456789") == std::string_view::npos;
}

void require_range(std::string_view suite, std::string_view field, const Json& value) {
  const Range range = range_of(suite, field);
  if (value.is_number_float()) throw std::runtime_error("field " + std::string(field) + " must be an integer");
  const bool huge = value.is_number_unsigned() &&
                    value.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()};
  require_in(field, huge ? std::numeric_limits<std::int64_t>::max() : value.get<std::int64_t>(), range.low, range.high);
}

void require_fields(std::string_view suite, std::string_view field, const Json& value) {
  if (value.is_number()) return require_range(suite, field, value);
  if (value.is_array())
    for (const Json& element : value) require_fields(suite, field, element);
  if (value.is_object())
    for (const auto& [key, element] : value.items()) require_fields(suite, is_number(key) ? field : key, element);
}

}  // namespace

void require_in(std::string_view field, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return;
  throw std::runtime_error("field " + std::string(field) + " = " + std::to_string(value) + " must be in [" +
                           std::to_string(low) + ", " + std::to_string(high) + "]");
}

void require_limits(std::string_view suite, const Json& value) {
  require_fields(suite, suite, value);
}

}  // namespace stateport::conformance
