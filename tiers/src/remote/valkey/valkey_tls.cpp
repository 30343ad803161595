// SPDX-License-Identifier: Apache-2.0
#include "remote/valkey/valkey_tls.hpp"

#include <stateport/core/model/error.hpp>

#include <hiredis/hiredis.h>
#include <hiredis/hiredis_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

namespace stateport::tiers {
namespace {

struct FreeSsl {
  void operator()(SSL* ssl) const noexcept { SSL_free(ssl); }
};
struct FreeContext {
  void operator()(SSL_CTX* context) const noexcept { SSL_CTX_free(context); }
};

void require_file(bool ok, const char* argument, const std::string& path) {
  ERR_clear_error();
  require(ok, argument, path, "cannot be used for TLS");
}

}  // namespace

struct ValkeyTlsContext::Context {
  std::unique_ptr<SSL_CTX, FreeContext> ssl;
};

bool ValkeyTlsContext::is_built() noexcept {
  return true;
}

ValkeyTlsContext::ValkeyTlsContext(const ValkeyStoreOptions& options)
    : context_(std::make_unique<Context>()),
      server_name_(options.tls->server_name.empty() ? options.host : options.tls->server_name) {
  const ValkeyTls& tls = *options.tls;
  context_->ssl.reset(SSL_CTX_new(TLS_client_method()));
  SSL_CTX* context = context_->ssl.get();
  if (!context) throw BackendError("SSL_CTX_new", "no context");
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  const char* authorities = tls.ca_file.c_str();
  require_file(tls.ca_file.empty() ? SSL_CTX_set_default_verify_paths(context) == 1
                                   : SSL_CTX_load_verify_locations(context, authorities, nullptr) == 1,
               "ca_file", tls.ca_file);
  if (tls.certificate_file.empty()) return;
  require_file(SSL_CTX_use_certificate_chain_file(context, tls.certificate_file.c_str()) == 1, "certificate_file",
               tls.certificate_file);
  require_file(SSL_CTX_use_PrivateKey_file(context, tls.key_file.c_str(), SSL_FILETYPE_PEM) == 1, "key_file",
               tls.key_file);
}

ValkeyTlsContext::~ValkeyTlsContext() = default;

std::string ValkeyTlsContext::secure(redisContext& connection) const {
  std::unique_ptr<SSL, FreeSsl> ssl(SSL_new(context_->ssl.get()));
  if (!ssl) return "no memory for TLS";
  // hiredis verifies the chain alone; the name is verified here.
  const bool is_address = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl.get()), server_name_.c_str()) == 1;
  ERR_clear_error();
  if (!is_address && (SSL_set1_host(ssl.get(), server_name_.c_str()) != 1 ||
                      SSL_set_tlsext_host_name(ssl.get(), server_name_.c_str()) != 1))
    return "the server's name cannot be verified";
  if (redisInitiateSSL(&connection, ssl.get()) != REDIS_OK) return connection.errstr;
  static_cast<void>(ssl.release());  // the connection's now
  return {};
}

}  // namespace stateport::tiers
