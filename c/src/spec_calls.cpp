// SPDX-License-Identifier: Apache-2.0
// State specs and the model catalogue.
#include <stateport/c/spec.h>
#include <stateport/core/model/models.hpp>

#include "arguments.hpp"
#include "guard.hpp"
#include "spec_object.hpp"

using namespace stateport;
using namespace stateport::c;

namespace {

std::int32_t type_to_c(ElementType type) noexcept {
  return static_cast<std::int32_t>(type) + 1;
}
static_assert(STATEPORT_FP32 == static_cast<int>(ElementType::fp32) + 1 &&
              STATEPORT_FP16 == static_cast<int>(ElementType::fp16) + 1 &&
              STATEPORT_BF16 == static_cast<int>(ElementType::bf16) + 1 &&
              STATEPORT_FP64 == static_cast<int>(ElementType::fp64) + 1 &&
              STATEPORT_FP8 == static_cast<int>(ElementType::fp8) + 1 &&
              STATEPORT_INT8 == static_cast<int>(ElementType::int8) + 1 &&
              STATEPORT_INT8_BLOCK32 == static_cast<int>(ElementType::int8_block32) + 1 &&
              STATEPORT_INT8_BLOCK32 == static_cast<int>(element_type_last) + 1);
static_assert(STATEPORT_CONV == static_cast<int>(StateKind::conv) &&
              STATEPORT_RECURRENT == static_cast<int>(StateKind::recurrent) &&
              STATEPORT_SD == static_cast<int>(ConvLayout::sd) && STATEPORT_DS == static_cast<int>(ConvLayout::ds));

StateTensorSpec from_c(const stateport_tensor_spec& tensor) {
  StateTensorSpec spec{.layer = tensor.layer,
                       .group = tensor.group,
                       .kind = enumerator(tensor.kind, StateKind::recurrent, "kind"),
                       .type = element_type(tensor.type),
                       .shape = {tensor.shape[0], tensor.shape[1], tensor.shape[2]}};
  const auto layout = enumerator(tensor.conv_layout, ConvLayout::ds, "conv_layout");
  spec.strides = {.token = tensor.token_stride, .channel = tensor.channel_stride};
  if (spec.kind == StateKind::conv && spec.strides == ConvStrides{})
    spec.strides = ConvStrides::of(layout, spec.window(), spec.dim());
  return spec;
}

stateport_tensor_spec tensor_to_c(const StateTensorSpec& tensor) noexcept {
  const ConvStrides strides = tensor.kind == StateKind::conv ? tensor.conv_strides() : ConvStrides{};
  return {.size = sizeof(stateport_tensor_spec),
          .layer = tensor.layer,
          .group = tensor.group,
          .kind = static_cast<std::int32_t>(tensor.kind),
          .type = type_to_c(tensor.type),
          .conv_layout = tensor.is(ConvLayout::ds) && !tensor.is(ConvLayout::sd) ? STATEPORT_DS : STATEPORT_SD,
          .shape = {tensor.shape[0], tensor.shape[1], tensor.shape[2]},
          .token_stride = strides.token,
          .channel_stride = strides.channel};
}

/// The texts are of literals.
stateport_model_info model_to_c(const models::ModelInfo& model) noexcept {
  return {.size = sizeof(stateport_model_info),
          .name = model.name.data(),
          .kind = model.kind.data(),
          .status = model.status.data(),
          .layers = model.layers,
          .state_layers = model.state_layers,
          .kv_bytes_per_token = model.kv_bytes_per_token.value_or(0)};
}

}  // namespace

const char* stateport_model_name(size_t index) {
  const auto models = models::all();
  return index < models.size() ? models[index].name.data() : nullptr;  // of a literal
}

stateport_status stateport_model_describe(const char* model, stateport_model_info* out) {
  return guarded([&] {
    const Out to(out, "out");
    to.write(model_to_c(read_model(model)));
  });
}

stateport_status stateport_config_describe(const char* config, size_t config_bytes, stateport_model_info* out) {
  return guarded([&] {
    const Out to(out, "out");
    to.write(model_to_c(read_config(config, config_bytes)));
  });
}

stateport_status stateport_spec_find(const char* model, const stateport_spec_options* options, stateport_spec** out) {
  return guarded([&] {
    create(out,
           [&] { return std::make_shared<SpecObject>(models::spec(read_model(model), read_spec_options(options))); });
  });
}

stateport_status stateport_spec_from_config(const char* config, size_t config_bytes,
                                            const stateport_spec_options* options, stateport_spec** out) {
  return guarded([&] {
    create(out, [&] {
      return std::make_shared<SpecObject>(models::spec(read_config(config, config_bytes), read_spec_options(options)));
    });
  });
}

stateport_status stateport_spec_create(const stateport_tensor_spec* tensors, size_t count, stateport_spec** out) {
  return guarded([&] {
    create(out, [&] {
      std::vector<StateTensorSpec> wanted;
      for (const stateport_tensor_spec& tensor : read_structs(tensors, count, "tensors"))
        wanted.push_back(from_c(tensor));
      return std::make_shared<SpecObject>(StateSpec(std::move(wanted)));
    });
  });
}

stateport_status stateport_spec_quantised(stateport_spec* live, int32_t recurrent_type, stateport_spec** out) {
  return guarded([&] {
    const Held<SpecObject> held(live, "live");
    create(out, [&] { return std::make_shared<SpecObject>(quantised(held->spec, element_type(recurrent_type))); });
  });
}

stateport_status stateport_spec_destroy(stateport_spec* spec) {
  return guarded([&] { destroy<SpecObject>(spec, "spec"); });
}

stateport_status stateport_spec_describe(stateport_spec* spec, stateport_spec_info* out) {
  return guarded([&] {
    const Held<SpecObject> held(spec, "spec");
    const StateSpec& known = held->spec;
    Out(out, "out")
        .write(
            {.tensors = known.tensors().size(), .slot_bytes = known.slot_bytes(), .fingerprint = known.fingerprint()});
  });
}

stateport_status stateport_spec_tensor(stateport_spec* spec, size_t index, stateport_tensor_spec* out) {
  return guarded([&] {
    const Held<SpecObject> held(spec, "spec");
    const auto tensors = held->spec.tensors();
    require(index < tensors.size(), "index", index, "must be below the number of tensors");
    Out(out, "out").write(tensor_to_c(tensors[index]));
  });
}
