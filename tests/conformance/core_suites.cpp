// SPDX-License-Identifier: Apache-2.0
// Suites of core's data: the model catalogue.
#include <stateport/core/models.hpp>

#include <stdexcept>

#include "families.hpp"

namespace stateport::conformance {
namespace {

void model_shapes(const Json& rows, Report& report) {
  for (const Json& row : rows)
    report.run_case(row.at("model"), [&] {
      const models::ModelInfo& model = models::info(row.at("model").get<std::string>());
      const StateSpec spec = models::find(model.name);
      expect_equal(model.layers, row.at("layers"), "layers");
      expect_equal(model.state_layers, row.at("state_layers"), "state_layers");
      expect_equal(spec.slot_bytes(), row.at("slot_bytes"), "slot_bytes");
      std::size_t conv_bytes = 0;
      std::size_t recurrent_bytes = 0;
      for (const StateTensorSpec& tensor : spec.tensors())
        if (tensor.layer == 0)
          (tensor.kind == StateKind::conv ? conv_bytes : recurrent_bytes) += tensor.natural_bytes();
      expect_equal(conv_bytes, row.at("conv_bytes"), "conv_bytes");
      expect_equal(recurrent_bytes, row.at("ssm_bytes"), "ssm_bytes");
      const std::size_t with_draft = models::find(model.name, {.drafts = 1}).slot_bytes();
      expect_equal((with_draft - spec.slot_bytes()) / static_cast<std::size_t>(model.state_layers),
                   row.at("conv_bytes_per_extra_draft"), "conv_bytes_per_extra_draft");
    });
}

}  // namespace

void add_core_suites(SuiteTable& table) {
  table.emplace("model_shapes", &model_shapes);
}

const std::map<std::string, Suite>& suites() {
  static const SuiteTable table = [] {
    SuiteTable all;
    add_core_suites(all);
    add_hash_suites(all);
    add_prefix_suites(all);
    add_slot_allocator_suites(all);
    add_slot_rule_suites(all);
    return all;
  }();
  return table;
}

}  // namespace stateport::conformance
