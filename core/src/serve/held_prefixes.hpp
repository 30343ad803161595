// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/cache_prefixes.hpp>

#include "serve/held_memory.hpp"
#include "serve/request_book.hpp"
#include "serve/request_clock.hpp"
#include "serve/request_epochs.hpp"
#include "serve/request_index.hpp"
#include "serve/request_tiers.hpp"
#include "serve/tenant_marks.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stateport::detail {

/// Pins and prefetches. Each has a row of the index behind those of requests: it is opened with the prompt as a request
/// is, runs no pass, and is closed as an aborted request. So an index, its evictions and its tiers treat the prefix as
/// the hit of a request that waits.
///
///     pin       open ─► (nothing: the row holds the hit) ─► close
///     prefetch  open ─► a load, as of a request that ended while it waits for its load ─► close
class HeldPrefixes final : public CachePrefixes, public PrefixHolder, private PrefixLoads {
 public:
  /// The arguments must outlive it. `tiers` and `marks` may be null.
  HeldPrefixes(RequestBook& book, RequestIndex& index, RequestEpochs& epochs, RequestClock& clock, RequestTiers* tiers,
               TenantMarks* marks);

  PinnedPrefix pin(const Prompt& prompt, double lease_s) override;
  bool unpin(PinId pin) override;
  Prefetch prefetch(const Prompt& prompt) override;
  [[nodiscard]] bool is_prefetching(PrefetchId prefetch) const override;
  [[nodiscard]] const PrefixUsage& usage() const noexcept override { return usage_; }

  /// Ends the pins whose leases are over. The book's clock is the time of the call.
  void end_leases();
  /// Ends the pins of forgotten contents.
  void end_stale() override;
  /// Ends all pins. No prefetch is under way.
  void end_all();
  /// Ends the pins that keep the state in this slot of the group.
  void end_pins_of(std::size_t group, SlotId slot);
  void check() const;

 private:
  struct Pin {
    RequestId row;
    PinId id = 0;  ///< 0: the row is free
    double ends_s = 0;
  };
  struct Load {
    RequestId row;
    PrefetchId id = 0;  ///< 0: the row is free
    std::int64_t cached_tokens = 0;
    HeldMemory::Load memory;
  };

  [[nodiscard]] bool may_load(RequestId row, std::int64_t tokens, std::int64_t cached_tokens) override;
  void end_load(RequestId row) override;

  void begin_call(const Prompt& prompt);
  void open(RequestId row, const Prompt& prompt);
  void close(RequestId& row);
  void end(Pin& pin);
  void end_call();
  void count() noexcept;
  [[nodiscard]] Load& load_of(RequestId row) noexcept;

  RequestBook& book_;
  RequestIndex& index_;
  RequestEpochs& epochs_;
  RequestClock& clock_;
  RequestTiers* tiers_;
  TenantMarks* marks_;
  HeldMemory memory_;
  std::vector<Pin> pins_;
  std::vector<Load> loads_;
  PinId last_pin_ = 0;
  PrefetchId last_load_ = 0;
  PrefixUsage usage_;
};

}  // namespace stateport::detail
