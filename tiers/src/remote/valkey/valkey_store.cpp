// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/valkey_store.hpp>

#include <stateport/core/model/error.hpp>

#include "remote/remote_requests.hpp"
#include "remote/valkey/valkey_lane.hpp"
#include "remote/valkey/valkey_tls.hpp"

#include <csignal>
#include <exception>
#include <future>
#include <list>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace stateport {

using tiers::RemoteRequest;
using tiers::RemoteRequests;
using tiers::ValkeyLane;

class ValkeyStore::Impl {
 public:
  explicit Impl(const ValkeyStoreOptions& options)
      : options_((tiers::validate(options), options)), requests_(options.limits) {
    if (options_.tls) tls_ = std::make_unique<tiers::ValkeyTlsContext>(options_);
    for (std::int32_t i = 0; i < options_.lanes; ++i) lanes_.emplace_back(options_, tls_.get(), requests_, counts_);
    try {
      if (const std::string problem = start(); !problem.empty()) throw BackendError("connection to Valkey", problem);
    } catch (const std::system_error& error) {
      stop();
      throw BackendError("start of a thread", error.what());
    } catch (...) {
      stop();
      throw;
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { stop(); }

  [[nodiscard]] RemoteRequests& requests() noexcept { return requests_; }
  [[nodiscard]] ValkeyStoreStatistics statistics() const { return counts_.statistics(); }

 private:
  /// The first lane connects at once, the others when they have something to do.
  [[nodiscard]] std::string start() {
    bool is_first = true;
    for (ValkeyLane& lane : lanes_) {
      threads_.emplace_back([&lane, promise = std::exchange(is_first, false) ? &connected_ : nullptr] {
        block_signals();
        if (promise) connect_first(lane, *promise);
        lane.run();
      });
    }
    return connected_.get_future().get();
  }

  static void connect_first(ValkeyLane& lane, std::promise<std::string>& promise) {
    try {
      promise.set_value(lane.connect());
    } catch (const std::bad_alloc&) {
      promise.set_exception(std::current_exception());
    }
  }

  /// A socket that was closed by the server must not end the process, and the engine's signals are the engine's.
  static void block_signals() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
  }

  void stop() noexcept {
    requests_.stop();
    for (ValkeyLane& lane : lanes_) lane.interrupt();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  ValkeyStoreOptions options_;
  RemoteRequests requests_;
  tiers::ValkeyCounts counts_;
  std::unique_ptr<tiers::ValkeyTlsContext> tls_;
  std::list<ValkeyLane> lanes_;
  std::promise<std::string> connected_;  ///< of the first lane, which may set it after start() has thrown
  std::vector<std::thread> threads_;
};

bool ValkeyStore::is_built() noexcept {
  return true;
}

bool ValkeyStore::has_tls() noexcept {
  return tiers::ValkeyTlsContext::is_built();
}

ValkeyStore::ValkeyStore(const ValkeyStoreOptions& options) : impl_(std::make_unique<Impl>(options)) {}

ValkeyStore::~ValkeyStore() = default;

ValkeyStoreStatistics ValkeyStore::valkey_statistics() const {
  return impl_->statistics();
}

bool ValkeyStore::do_put(std::span<const RemoteObject> objects) {
  return impl_->requests().add(RemoteRequest::Kind::put, objects);
}

bool ValkeyStore::do_get(std::span<const RemoteObject> objects) {
  return impl_->requests().add(RemoteRequest::Kind::get, objects);
}

bool ValkeyStore::do_exists(std::span<const RemoteKey> keys) {
  return impl_->requests().add(RemoteRequest::Kind::exists, keys);
}

bool ValkeyStore::do_remove(std::span<const RemoteKey> keys) {
  return impl_->requests().add(RemoteRequest::Kind::remove, keys);
}

std::size_t ValkeyStore::do_poll(std::span<RemoteCompletion> completions) {
  return impl_->requests().poll(completions);
}

}  // namespace stateport
