// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/block_hash.hpp>

#include <openssl/evp.h>

#include <cstdint>
#include <memory>
#include <span>

namespace stateport::detail {

/// SHA-256 by libcrypto, with one context that is used again by every call. Not thread-safe.
class Sha256 {
 public:
  /// Throws BackendError if libcrypto refuses.
  Sha256();
  [[nodiscard]] BlockDigest operator()(std::span<const std::uint8_t> message);

 private:
  struct Free {
    void operator()(EVP_MD* md) const noexcept { EVP_MD_free(md); }
    void operator()(EVP_MD_CTX* context) const noexcept { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD, Free> md_;
  std::unique_ptr<EVP_MD_CTX, Free> context_;
};

}  // namespace stateport::detail
