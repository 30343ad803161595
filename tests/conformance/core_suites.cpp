// SPDX-License-Identifier: Apache-2.0
// Suites of core's data: the model catalogue.
#include <stateport/core/model/models.hpp>

#include "families.hpp"
#include "limits.hpp"

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace stateport::conformance {
namespace {

ElementType element_type(const std::string& name) {
  for (const ElementType type : {ElementType::fp32, ElementType::fp16, ElementType::bf16, ElementType::fp64,
                                 ElementType::fp8, ElementType::int8, ElementType::int8_block32})
    if (stateport::name(type) == name) return type;
  throw std::runtime_error(name + " is not an element type");
}

/// The model as the row describes it; "-" and [] mean that it has no such tensor.
models::ModelInfo described_model(const Json& row) {
  models::ModelInfo model{.layers = row.at("layers"), .state_layers = row.at("state_layers")};
  if (row.at("conv_dtype") != "-")
    model.conv = {row.at("conv_width"), row.at("conv_dim"), element_type(row.at("conv_dtype"))};
  const auto extents = row.at("ssm_shape").get<std::vector<std::int64_t>>();
  if (extents.empty()) return model;
  model.recurrent = {{1, 1, 1}, element_type(row.at("ssm_dtype"))};
  require_in("ssm_shape.size()", std::ssize(extents), 0, std::ssize(model.recurrent.shape));
  std::ranges::copy(extents, model.recurrent.shape.begin());
  return model;
}

StateSpec spec_of(const models::ModelInfo& model, std::int64_t drafts) {
  ConvShape conv = model.conv;
  if (conv.window > 0) conv.window += drafts;
  return StateSpec::uniform(model.state_layers, conv, model.recurrent);
}

/// The row's own shapes; for a model of the catalogue, the catalogue's.
void model_shapes(const Json& rows, Report& report) {
  for (const Json& row : rows)
    report.run_case(row.at("model"), [&] {
      const auto known = std::ranges::find(models::all(), row.at("model").get<std::string>(), &models::ModelInfo::name);
      const models::ModelInfo model = known != models::all().end() ? *known : described_model(row);
      const StateSpec spec = spec_of(model, 0);
      if (known != models::all().end()) expect_equal(models::find(model.name) == spec, true, "the catalogue's spec");
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
      const std::size_t with_draft = spec_of(model, 1).slot_bytes();
      expect_equal((with_draft - spec.slot_bytes()) / static_cast<std::size_t>(model.state_layers),
                   row.at("conv_bytes_per_extra_draft"), "conv_bytes_per_extra_draft");
    });
}

}  // namespace

void add_core_suites(SuiteTable& table) {
  table.emplace("model_shapes", &model_shapes);
}

namespace {

/// `cases` is the key of several files: the form of an element tells which.
void cases(const Json& rows, Report& report) {
  if (!rows.empty() && rows.front().contains("kind")) return run_speculative_cases(rows, report);
  run_prefix_cases(rows, report);
}

}  // namespace

const std::map<std::string, Suite>& suites() {
  static const SuiteTable table = [] {
    SuiteTable all;
    add_core_suites(all);
    add_hash_suites(all);
    add_prefix_suites(all);
    add_slot_allocator_suites(all);
    add_slot_rule_suites(all);
    add_align_decision_suites(all);
    add_align_planning_suites(all);
    add_align_life_suites(all);
    add_byte_suites(all);
    all.emplace("cases", &cases);
    return all;
  }();
  return table;
}

}  // namespace stateport::conformance
