// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/c/remote_store.h>
#include <stateport/core/model/error.hpp>
#include <stateport/tiers/remote_store.hpp>

#include "handle_table.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <utility>

namespace stateport::c {

/// Who uses `store` holds this object, so that it lives as long.
struct RemoteStoreObject final : Object {
  static constexpr Kind kind = Kind::remote_store;
  /// `make` gets this object, of whose callbacks the store tells.
  explicit RemoteStoreObject(const std::function<std::unique_ptr<RemoteStore>(Object&)>& make)
      : Object(kind), store(make(*this)) {}

  std::unique_ptr<RemoteStore> store;
  std::atomic<bool> used_by_tiers = false;
};

/// The use of a store by the tiers that hold this, which take all its answers.
class RemoteStoreUse {
 public:
  /// Throws InvalidState if it is used already, or has requests that were not answered: the tiers would take these
  /// answers for theirs.
  explicit RemoteStoreUse(std::shared_ptr<RemoteStoreObject> of) : object_(std::move(of)) {
    const std::lock_guard turn(object_->mutex());
    require_state(!object_->used_by_tiers, "remote.store", "is used by other tiers");
    const RemoteStoreStatistics done = object_->store->statistics();
    require_state(std::accumulate(done.answers.begin(), done.answers.end(), std::uint64_t{0}) >= done.accepted_requests,
                  "remote.store", "has requests that were not answered");
    object_->used_by_tiers = true;
  }
  ~RemoteStoreUse() { object_->used_by_tiers = false; }
  RemoteStoreUse(const RemoteStoreUse&) = delete;
  RemoteStoreUse& operator=(const RemoteStoreUse&) = delete;

  [[nodiscard]] RemoteStore* store() const noexcept { return object_->store.get(); }
  [[nodiscard]] bool is_calling_back_here() const noexcept { return object_->is_calling_back_here(); }

 private:
  std::shared_ptr<RemoteStoreObject> object_;
};

/// A client in functions of the caller's.
class CallbackStore final : public RemoteStore {
 public:
  CallbackStore(Object& object, const stateport_remote_callbacks& callbacks, const RemoteQueueLimits& limits);
  ~CallbackStore() override;

  [[nodiscard]] bool needs_registration() const noexcept override { return callbacks_.needs_registration != 0; }

 private:
  class Lane;

  void do_register(std::span<std::byte> memory) override;
  void do_unregister(std::span<std::byte> memory) override;

  template <class Call>
  auto call(Call&& call) noexcept;

  Object& object_;
  stateport_remote_callbacks callbacks_;
  std::mutex turn_;
};

}  // namespace stateport::c
