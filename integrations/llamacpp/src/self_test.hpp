// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sequence_images.hpp"

#include <cstddef>
#include <cstdint>

namespace stateport::llamacpp {

struct ImageSizes {
  std::size_t state = 0;
  std::size_t kv_block = 0;
};

/// Decodes three blocks on the first sequence, restores it from its images, and compares the next token's logits bit
/// for bit. Leaves the context's memory empty, also if it throws: InvalidArgument "context" with the reason why its
/// states cannot be kept, or "context.n_ctx" if that is no more than three blocks; BackendError for a call of llama.cpp
/// that fails.
[[nodiscard]] ImageSizes test_context(llama_context* context, SequenceImages& images, std::int32_t block_tokens);

}  // namespace stateport::llamacpp
