// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "suite.hpp"

#include <map>
#include <string>

/// Each family of suites is one source file that adds its suites to the table.
namespace stateport::conformance {

using SuiteTable = std::map<std::string, Suite>;

void add_core_suites(SuiteTable& table);
void add_hash_suites(SuiteTable& table);
void add_prefix_suites(SuiteTable& table);
void add_slot_allocator_suites(SuiteTable& table);
void add_slot_rule_suites(SuiteTable& table);
void add_align_decision_suites(SuiteTable& table);
void add_align_planning_suites(SuiteTable& table);
void add_align_life_suites(SuiteTable& table);
void add_byte_suites(SuiteTable& table);

/// `cases` is the key of several files; suites() looks at the form of an element. Those with a `kind`:
void run_speculative_cases(const Json& rows, Report& report);
/// Those with `ops`.
void run_prefix_cases(const Json& rows, Report& report);

}  // namespace stateport::conformance
