// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/remote_store.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace stateport {

struct MooncakeStoreOptions {
  std::string local_hostname = "127.0.0.1";  ///< of this machine, as the others reach it
  std::string metadata_server = "P2PHANDSHAKE";
  std::string master = "127.0.0.1:50051";
  std::string protocol = "tcp";   ///< or rdma, …
  std::string devices;            ///< of the network, for rdma
  std::size_t segment_bytes = 0;  ///< of this machine's memory that the store may use for everybody's objects
  std::size_t buffer_bytes = std::size_t{128} << 20;  ///< of the client's own
  std::size_t replicas = 1;                           ///< of each object that is put
  std::int32_t lanes = 1;                             ///< threads that wait for the client
  RemoteQueueLimits limits = {};
};

/// Objects in a Mooncake Store, through its C interface (store_c.h). Where that was found when stateport was built.
///
/// An object whose pieces lie one behind the other goes to and from the caller's memory; others are gathered in a
/// buffer of the store. Objects are removed even if they were read a moment ago, which the store calls forced.
class MooncakeStore final : public RemoteStore {
 public:
  /// Whether the library was built with Mooncake.
  [[nodiscard]] static bool is_built() noexcept;

  /// Connects to the master, and waits for that. Throws InvalidArgument: an empty text (but `devices`), no replicas,
  /// lanes not in [1, 64], a limit of 0; InvalidState: not built; BackendError: the master cannot be reached.
  explicit MooncakeStore(const MooncakeStoreOptions& options);
  /// Waits for the calls of the client that are under way.
  ~MooncakeStore() override;

  [[nodiscard]] bool needs_registration() const noexcept override { return true; }

 private:
  class Client;

  void do_register(std::span<std::byte> memory) override;
  void do_unregister(std::span<std::byte> memory) override;

  std::unique_ptr<Client> client_;
};

namespace tiers {

/// Throws InvalidArgument as the constructor of MooncakeStore does.
void validate(const MooncakeStoreOptions& options);

}  // namespace tiers
}  // namespace stateport
