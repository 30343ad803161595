// SPDX-License-Identifier: Apache-2.0
#include "sum_table.hpp"

#include <stateport/backends/internal/upload.hpp>

#include <vector>

namespace stateport::kernels {
namespace {

/// The tensors of a store; those without gaps as bytes.
std::vector<StateTensorView> as_bytes(const StateStore& store) {
  std::vector<StateTensorView> tensors(store.tensors().begin(), store.tensors().end());
  for (StateTensorView& tensor : tensors)
    if (tensor.spec.dense())
      tensor.spec = {.layer = tensor.spec.layer,
                     .type = ElementType::int8,
                     .shape = {1, 1, static_cast<std::int64_t>(tensor.spec.natural_bytes())}};
  return tensors;
}

std::vector<SumRule> rules_of(const StateStore& store) {
  std::vector<SumRule> rules;
  for (const StateTensorView& tensor : store.tensors()) {
    SumRule rule{.exponents = exponent_mask(tensor.spec.type)};
    if (in_blocks(tensor.spec.type)) rule.scales_begin = static_cast<std::uint64_t>(tensor.spec.element_count());
    rules.push_back(rule);
  }
  return rules;
}

}  // namespace

SumTable::SumTable(const StateStore& store, std::size_t tile_bytes_max)
    : tiles_(as_bytes(store), StateStore::view(as_bytes(store), store.slots()), tile_bytes_max),
      rules_(detail::upload(resource_, rules_of(store))) {}

}  // namespace stateport::kernels
