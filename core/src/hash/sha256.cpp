// SPDX-License-Identifier: Apache-2.0
#include "hash/sha256.hpp"

#include <stateport/core/model/error.hpp>

namespace stateport::detail {

Sha256::Sha256() : md_(EVP_MD_fetch(nullptr, "SHA256", nullptr)), context_(EVP_MD_CTX_new()) {
  if (!md_ || !context_) throw BackendError("EVP_MD_fetch", "libcrypto offers no SHA-256");
  static_cast<void>((*this)({}));  // libcrypto takes the memory of a context when that is used for the first time
}

BlockDigest Sha256::operator()(std::span<const std::uint8_t> message) {
  BlockDigest digest;
  // The same fetched algorithm every time: libcrypto then keeps the context's memory.
  const bool done = EVP_DigestInit_ex2(context_.get(), md_.get(), nullptr) == 1 &&
                    EVP_DigestUpdate(context_.get(), message.data(), message.size()) == 1 &&
                    EVP_DigestFinal_ex(context_.get(), digest.bytes.data(), nullptr) == 1;
  if (!done) throw BackendError("EVP_Digest", "libcrypto refused a SHA-256");
  return digest;
}

}  // namespace stateport::detail
