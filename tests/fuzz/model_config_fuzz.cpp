// SPDX-License-Identifier: Apache-2.0
// The config.json of a model. One that is read has a spec, and a layout that one rank can hold.
#include <stateport/core/model/error.hpp>
#include <stateport/core/model/models.hpp>

#include "byte_source.hpp"
#include "fuzz_memory.hpp"

#include <string>

using namespace stateport;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text = fuzz::ByteSource(data, size).rest();
  fuzz::limit_allocations(std::size_t{1} << 24);
  try {
    const models::ModelInfo model = models::from_config(text);
    fuzz::expect(model.state_layers >= 1 && model.state_layers <= model.layers, "recurrent layers");
    fuzz::expect(!model.name.empty() && !model.kind.empty() && !model.status.empty(), "texts");
    const ModelLayout layout = models::layout(model, {.drafts = 2});
    fuzz::expect(layout.layers() >= model.state_layers, "layers of the layout");
    fuzz::expect(layout.layers() <= model.layers, "layers with states");
    fuzz::expect(layout.spec_of({.layer_end = layout.layers(), .head_groups = 1}) == layout.whole(), "the only rank");
  } catch (const InvalidArgument& error) {
    fuzz::expect(!error.argument().empty() && !error.value().empty(), "a refusal names argument and value");
  }
  fuzz::limit_allocations(0);
  return 0;
}
