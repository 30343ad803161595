// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "suite.hpp"

/// Each family of suites is one source file that adds its suites to the table.
namespace stateport::conformance {

using SuiteTable = std::map<std::string, Suite>;

void add_core_suites(SuiteTable& table);
void add_hash_suites(SuiteTable& table);
void add_prefix_suites(SuiteTable& table);
void add_slot_allocator_suites(SuiteTable& table);
void add_slot_rule_suites(SuiteTable& table);

}  // namespace stateport::conformance
