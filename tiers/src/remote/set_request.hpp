// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/object_set.hpp>
#include <stateport/tiers/remote_tier.hpp>

#include "remote/remote_request.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace stateport::tiers {

/// Counts of a RemoteTier. Thread-safe.
class RemoteTierCounts {
 public:
  /// A request that the store did not accept.
  void refuse(RemoteCall call) noexcept;
  /// `removed`: objects that were not as they should be.
  void end(RemoteCall call, const Completion& how, double seconds, std::uint64_t removed) noexcept;
  [[nodiscard]] RemoteTierStatistics statistics() const;

 private:
  mutable std::mutex mutex_;
  RemoteTierStatistics statistics_;
};

/// A request to a RemoteTier: for the objects of a key, which are the parts.
///
///     put     seal ──► put, all objects of the first encoding
///     get     get ──► verify, all objects of an encoding. Those that are not as they should be are removed
///                └── gone: anew, in the next encoding
///     exists  all objects of all encodings
///     remove  all objects of all encodings; not answered
class SetRequest final : public RemoteRequest {
 public:
  /// `sets`: of the content and group of the key, in the order of encodings. They and `counts` outlive the request.
  SetRequest(RemoteCall call, std::uint64_t ticket, const ImageKey& key, std::span<const ObjectSet> sets,
             std::span<std::byte> memory, RemoteTierCounts& counts);

  [[nodiscard]] static std::size_t parts_of(RemoteCall call, std::span<const ObjectSet> sets) noexcept;

  [[nodiscard]] RemoteObject object(std::size_t part, std::string& name, RemotePiece& piece) const override;
  [[nodiscard]] std::size_t bytes(std::size_t part) const noexcept override;
  void seal(std::size_t part) const override;
  [[nodiscard]] TransferStatus verify(std::size_t part, std::uint64_t bytes) override;
  [[nodiscard]] bool removes(TransferStatus status) const noexcept override;
  void note(std::size_t part, const Completion& how) noexcept override;
  [[nodiscard]] End finish(Completion& answer) noexcept override;

 private:
  /// The set that a part is of, and its number there.
  [[nodiscard]] std::pair<const ObjectSet*, std::size_t> place_of(std::size_t part) const noexcept;
  [[nodiscard]] TransferStatus summary() const noexcept;

  ImageKey key_;
  std::span<const ObjectSet> sets_;
  std::span<std::byte> memory_;
  RemoteTierCounts& counts_;
  std::chrono::steady_clock::time_point accepted_ = std::chrono::steady_clock::now();
  std::size_t encoding_ = 0;              ///< of a put or get
  std::uint64_t removed_ = 0;             ///< objects
  std::vector<TransferStatus> statuses_;  ///< by part
};

}  // namespace stateport::tiers
