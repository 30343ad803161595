// SPDX-License-Identifier: Apache-2.0
// Suites of recorded op sequences: slot allocator, block pool, commit, random traces, and the hazards not to copy.
#include <stateport/core/slots/slot_allocator.hpp>

#include "families.hpp"
#include "slot_replay.hpp"

#include <functional>
#include <map>
#include <stdexcept>
#include <string>

namespace stateport::conformance {
namespace {

void op_sequences(const Json& cases, Report& report) {
  for (const Json& recorded : cases)
    report.run_case(recorded.at("name"), [&] {
      SlotReplay replay(recorded.at("config"));
      std::size_t step = 0;
      try {
        for (const Json& op : recorded.at("ops")) {
          replay.run(op);
          ++step;
        }
      } catch (const std::exception& error) {
        throw std::runtime_error("op " + std::to_string(step) + " " + recorded.at("ops").at(step).at("op").dump() +
                                 ": " + error.what());
      }
      if (recorded.contains("final")) replay.expect_state(recorded.at("final"));
    });
}

/// The final state by the recommended rule of each known hazard, instead of the recorded one.
const std::map<std::string, Json>& recommended_finals() {
  static const std::map<std::string, Json> finals = {
      {"hazard_self_eviction_in_batch",
       {{"block_to_slot", {0, -1, -1, -1, -1, -1}},
        {"slot_to_block", {0}},
        {"free_slots_bottom_to_top", Json::array()}}},
      {"hazard_invalidate_leaves_hash",
       {{"block_to_slot", {-1, -1, -1, -1, -1, -1}},
        {"free_slots_bottom_to_top", {0, 1}},
        {"mamba_hash_to_block", Json::object()}}},
      {"hazard_slot_leak_on_unmatched_deregister",
       {{"block_to_slot", {-1, 1, -1, -1, -1, -1}},
        {"slot_to_block", {-1, 1}},
        {"free_slots_bottom_to_top", {0}},
        {"mamba_hash_to_block", {{"12", 1}}}}},
      {"hazard_duplicate_invalidate_batch",
       {{"block_to_slot", {-1, 1, -1, -1, -1, -1}}, {"slot_to_block", {-1, 1}}, {"free_slots_bottom_to_top", {0}}}},
      {"hazard_duplicate_hash_two_blocks",
       {{"block_to_slot", {-1, 0, 1, -1, -1, -1}}, {"slot_to_block", {1, 2}}, {"mamba_hash_to_block", {{"55", 1}}}}},
  };
  return finals;
}

void slot_allocator_hazards(const Json& cases, Report& report) {
  for (const Json& recorded : cases)
    report.run_case(recorded.at("name"), [&] {
      SlotReplay replay(recorded.at("config"));
      for (const Json& op : recorded.at("ops")) replay.run_safely(op);
      const auto known = recommended_finals().find(recorded.at("name").get<std::string>());
      if (known != recommended_finals().end()) replay.expect_state(known->second);
    });
}

}  // namespace

void add_slot_allocator_suites(SuiteTable& table) {
  // All on the classes themselves: single operations on made-up blocks, hashes and ticks, also those of `commit`, whose
  // requests have no tokens. RequestCache names its blocks and computes their hashes itself.
  for (const char* suite : {"slot_allocator", "kv_block_allocator", "commit", "fuzz_traces"})
    table.emplace(suite, &op_sequences);
  table.emplace("slot_allocator_hazards", &slot_allocator_hazards);
}

}  // namespace stateport::conformance
