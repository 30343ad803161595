// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/cache_epochs.hpp>
#include <stateport/tiers/image.hpp>
#include <stateport/tiers/remote_store.hpp>

#include "remote/forget_object.hpp"
#include "remote/remote_request.hpp"
#include "serve/forget_records.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stateport::tiers {

/// The memory of a ForgetRequest, and its end. One request uses it at a time.
struct ForgetShare {
  enum class State : std::uint8_t { idle, under_way, ended };

  /// The sets of the cache, and of each object.
  detail::ForgetRecords known{(1 + ForgetObject::copies) * CacheEpochs::records_max};
  std::vector<std::byte> object = std::vector<std::byte>(ForgetObject::bytes_max);
  TransferStatus status = TransferStatus::failed;
  std::atomic<State> state = State::idle;  ///< the request has written all else when it ends
};

/// Exchanges records with the objects of a store: `known` gets theirs, and they get those of `known`. Its one part is a
/// call for one of the objects:
///
///     get both ──► both have all records: done
///      ▲      ├──► one is gone: put it ──────────────────────────────────────────────────┐
///      │      └──► one lacks records, or is damaged, and none is gone: remove it, put it ─┤
///      └──────────────────────────────────────────────────────────────────────────────────┘
///
/// So an object that is put has the records of both, and none is removed while the other one is not there: wherever a
/// client ends, records that both objects had are in the store. Other clients write in between, so both are read again
/// after a put, which leaves an object that is there as it is. Not answered: the share says how it ended.
class ForgetRequest final : public RemoteRequest {
 public:
  /// `share`, which outlives the request, has the records of the cache, and is under way.
  ForgetRequest(const ModelId& model, ForgetShare& share) noexcept;
  /// A request that did not end has failed.
  ~ForgetRequest() override;

  [[nodiscard]] RemoteObject object(std::size_t part, std::string& name, RemotePiece& piece) const override;
  [[nodiscard]] std::size_t bytes(std::size_t part) const noexcept override;
  [[nodiscard]] TransferStatus verify(std::size_t part, std::uint64_t bytes) override;
  void note(std::size_t part, const Completion& how) noexcept override;
  [[nodiscard]] End finish(Completion& answer) noexcept override;

 private:
  /// How the request ends, or nothing: call() is made next, for copy_.
  [[nodiscard]] std::optional<TransferStatus> go_on() noexcept;
  [[nodiscard]] std::optional<TransferStatus> go_on_after_get() noexcept;
  void note_object() noexcept;

  enum class Found : std::uint8_t { nothing_yet, gone, damaged, lacking, whole };

  ModelId model_;
  ForgetShare& share_;
  std::size_t copy_ = 0;
  std::array<Found, ForgetObject::copies> found_ = {};
  std::size_t writes_ = 0;
  TransferStatus last_ = TransferStatus::failed;  ///< answer
  bool is_new_ = false;                           ///< the object that was got had records that were not known
  bool is_whole_ = false;                         ///< it has all that are known
  bool has_ended_ = false;
};

}  // namespace stateport::tiers
