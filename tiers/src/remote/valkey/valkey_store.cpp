// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/valkey_store.hpp>

#include <stateport/core/model/error.hpp>

#include "remote/valkey/valkey_lane.hpp"
#include "remote/valkey/valkey_tls.hpp"

#include <csignal>
#include <future>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace stateport {

using tiers::ValkeyLane;

class ValkeyStore::Impl {
 public:
  explicit Impl(const ValkeyStoreOptions& options) : options_((tiers::validate(options), options)) {
    if (options_.tls) tls_ = std::make_unique<tiers::ValkeyTlsContext>(options_);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// The first lane connects at once, the others when they have something to do.
  [[nodiscard]] std::vector<std::unique_ptr<RemoteLane>> connect() {
    std::vector<std::unique_ptr<RemoteLane>> lanes;
    auto first = std::make_unique<ValkeyLane>(options_, tls_.get(), counts_);
    if (const std::string problem = connect(*first); !problem.empty())
      throw BackendError("connection to Valkey", problem);
    lanes.push_back(std::move(first));
    while (std::cmp_less(lanes.size(), options_.lanes))
      lanes.push_back(std::make_unique<ValkeyLane>(options_, tls_.get(), counts_));
    return lanes;
  }
  [[nodiscard]] ValkeyStoreStatistics statistics() const { return counts_.statistics(); }

 private:
  /// On a thread whose signals are blocked: a socket that the server closes must not end the process.
  static std::string connect(ValkeyLane& lane) {
    try {
      return std::async(std::launch::async,
                        [&lane] {
                          sigset_t all;
                          sigfillset(&all);
                          pthread_sigmask(SIG_BLOCK, &all, nullptr);
                          return lane.connect();
                        })
          .get();
    } catch (const std::system_error& error) {
      throw BackendError("start of a thread", error.what());
    }
  }

  ValkeyStoreOptions options_;
  tiers::ValkeyCounts counts_;
  std::unique_ptr<tiers::ValkeyTlsContext> tls_;
};

bool ValkeyStore::is_built() noexcept {
  return true;
}

bool ValkeyStore::has_tls() noexcept {
  return tiers::ValkeyTlsContext::is_built();
}

ValkeyStore::ValkeyStore(const ValkeyStoreOptions& options)
    : RemoteStore(options.limits), impl_(std::make_unique<Impl>(options)) {
  // No bytes together: one put or get at a time, so that other lanes find work.
  serve(impl_->connect(), 0);
}

ValkeyStore::~ValkeyStore() {
  stop();
}

ValkeyStoreStatistics ValkeyStore::valkey_statistics() const {
  return impl_->statistics();
}

}  // namespace stateport
