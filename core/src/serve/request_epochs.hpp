// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/cache_epochs.hpp>

#include "serve/epoch_names.hpp"
#include "serve/request_book.hpp"
#include "serve/request_index.hpp"
#include "serve/request_tiers.hpp"

#include <cstdint>
#include <span>

namespace stateport::detail {

/// Holds contents for no request.
class PrefixHolder {
 public:
  /// Gives up forgotten contents, before the index forgets them.
  virtual void end_stale() = 0;

 protected:
  ~PrefixHolder() = default;
};

/// The part of a RequestCache that forgets contents while requests run.
class RequestEpochs final : public CacheEpochs {
 public:
  /// The arguments must outlive it. `tiers` may be null.
  RequestEpochs(RequestBook& book, RequestIndex& index, RequestTiers* tiers)
      : book_(book), index_(index), tiers_(tiers), names_(book.options.epoch) {}

  std::uint64_t advance(std::uint64_t epoch) override;
  [[nodiscard]] std::uint64_t current() const noexcept override { return names_.epoch(); }
  void forget(const Namespace& name_space, ForgetBy by) override;
  [[nodiscard]] std::span<const ForgetRecord> forgotten() const noexcept override { return names_.records(); }
  bool adopt(std::span<const ForgetRecord> records) override;
  [[nodiscard]] bool is_stale(RequestId request) const override;
  /// Must outlive this.
  void set_holder(PrefixHolder& holder) noexcept { holder_ = &holder; }
  /// No later prompt finds anything, and the epoch stays.
  void forget_all();
  /// The name of a prompt's namespace, by which everything finds it.
  [[nodiscard]] Namespace name_of(const Namespace& name_space) const { return names_.current(name_space); }

 private:
  void forget(const Forgotten& forgotten);

  RequestBook& book_;
  RequestIndex& index_;
  RequestTiers* tiers_;
  PrefixHolder* holder_ = nullptr;
  EpochNames names_;
};

}  // namespace stateport::detail
