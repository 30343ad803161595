// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/pinned_resource.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/core/model/state_spec.hpp>
#include <stateport/kernels/state_store.hpp>

#include <llama.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace stateport::llamacpp {

/// A store of images that are opaque bytes. Behind each image stand its length in tokens, and a checksum of its bytes
/// and of its last tokens, so that they also lie in files.
class ImageStore {
 public:
  ImageStore(MemoryResource& memory, std::size_t image_bytes, std::int32_t slots, const Stream& stream);

  /// A slot, with its tag.
  [[nodiscard]] static StateSpec spec(std::size_t image_bytes);

  [[nodiscard]] const StateStore& store() const noexcept { return store_; }
  [[nodiscard]] std::span<std::byte> image(std::int32_t slot) const noexcept;
  /// The image is complete. `prefix`: the tokens to its end, from the start of the prompt.
  void seal(std::int32_t slot, std::span<const llama_token> prefix) const;
  /// Throws std::runtime_error, with `content` in its text, unless the slot has the bytes that were sealed there for
  /// these tokens.
  void verify(std::int32_t slot, std::span<const llama_token> prefix, std::string_view content) const;

 private:
  std::size_t image_bytes_;
  StateStore store_;
};

}  // namespace stateport::llamacpp
