// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tier/transfer_plan.hpp>
#include <stateport/tiers/completion.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace stateport::tiers {

/// A tier below host memory: it writes and reads images while others work. Tests put one in its place that is slow, or
/// broken.
class LowerTier {
 public:
  struct Image {
    ImageKey key;
    std::span<std::byte> bytes;  ///< of which the tier may write the headers
  };
  virtual ~LowerTier() = default;

  /// Begin to write images together, all or none, or to read one. The bytes are left alone by others until the ticket
  /// is answered. False: no room, in the queue or at all; nothing has begun.
  [[nodiscard]] virtual bool write(std::span<const Image> images, std::uint64_t ticket) = 0;
  [[nodiscard]] virtual bool read(const ImageKey& key, std::span<std::byte> image, std::uint64_t ticket) = 0;
  /// Begins to ask whether an image is there; done or gone. False: no room in the queue, or nothing can be asked here.
  [[nodiscard]] virtual bool find(const ImageKey& /*key*/, std::uint64_t /*ticket*/) { return false; }
  /// Forgets an image. Requests that were begun before still find it; one that is being written is forgotten when it is
  /// there. False: no room in the queue.
  [[nodiscard]] virtual bool remove(const ImageKey& key) = 0;
  /// Fills in the answers since the last call; waits for nothing.
  [[nodiscard]] virtual std::size_t poll(std::span<Completion> completions) = 0;
};

}  // namespace stateport::tiers
