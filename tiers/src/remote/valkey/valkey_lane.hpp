// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/remote_store.hpp>

#include "remote/valkey/valkey_connection.hpp"
#include "remote/valkey/valkey_objects.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stateport::tiers {

/// Counts of all lanes of a store. Thread-safe.
class ValkeyCounts {
 public:
  template <class Change>
  void change(Change&& change) {
    const std::lock_guard lock(mutex_);
    change(statistics_);
  }
  /// Becomes last_error, "<why>: <word>", or nothing does: without memory.
  void tell(std::string_view why, std::string_view word = {}) noexcept;
  [[nodiscard]] std::uint64_t connections() const {
    const std::lock_guard lock(mutex_);
    return statistics_.connections;
  }
  [[nodiscard]] ValkeyStoreStatistics statistics() const {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }

 private:
  mutable std::mutex mutex_;
  ValkeyStoreStatistics statistics_;
};

/// Carries out requests over one connection, which it makes again when it is lost.
class ValkeyLane final : public RemoteLane {
 public:
  /// All outlive the lane. `tls` may be nullptr.
  ValkeyLane(const ValkeyStoreOptions& options, const ValkeyTlsContext* tls, ValkeyCounts& counts)
      : options_(options), tls_(tls), counts_(counts) {}

  /// Connects now. Returns the error, or nothing.
  [[nodiscard]] std::string connect();
  void carry_out(RemoteCall call, std::span<const RemoteObject> objects, std::span<Completion> answers) override;
  /// Attempts to connect go on until their timeout.
  void interrupt() noexcept override { gate_.close(); }

 private:
  using Clock = std::chrono::steady_clock;

  /// Nothing: all have failed.
  [[nodiscard]] std::vector<ValkeyOutcome> attempt(RemoteCall call, std::span<const RemoteObject> objects) noexcept;
  [[nodiscard]] bool is_connected_or_connects();
  void pause();
  void note(const ValkeyOutcome& outcome) noexcept;

  const ValkeyStoreOptions& options_;
  const ValkeyTlsContext* tls_;
  ValkeyCounts& counts_;
  ConnectionGate gate_;
  std::optional<ValkeyConnection> connection_;
  std::chrono::milliseconds pause_{0};
  Clock::time_point retry_at_ = Clock::time_point::min();  ///< no attempt to connect before, ...
  std::uint64_t connections_at_pause_ = 0;                 ///< ... unless another lane has made one since
};

}  // namespace stateport::tiers
