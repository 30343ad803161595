// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/core/serve/request_cache.hpp>
#include <stateport/kernels/state_store.hpp>
#include <stateport/tiers/in_process_store.hpp>
#include <stateport/tiers/state_tiers.hpp>

#include "mark_world.hpp"
#include "movers.hpp"
#include "random_numbers.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace stateport::soak {

/// A client of objects in this process that may be away: then everything fails.
class AbsentStore final : public RemoteStore {
 public:
  explicit AbsentStore(std::shared_ptr<InProcessObjects> objects);
  ~AbsentStore() override { stop(); }
  /// Any thread may say so.
  std::atomic<bool> is_away = false;
};

/// StateTiers with files and an in-process store. The engine's states are marks. Before a store, bytes that follow from
/// the mark are written to the device's memory. After a load they are read from there: every byte must be right.
class RealTiers final : public Mover {
 public:
  RealTiers(test::Random& random, const RequestCacheOptions& options, MarkWorld& world, const std::string& folder,
            std::uint32_t model, std::shared_ptr<InProcessObjects> objects, FaultCounts& counts);
  ~RealTiers() override;

  /// The image sizes, for RequestCacheOptions::tiers.
  static void set_image_bytes(RequestCacheOptions& options);

  void take(TransferPlan transfers) override;
  void poll(std::vector<TransferResult>& results, bool all) override;
  [[nodiscard]] std::size_t under_way() const override { return transfers_.size(); }
  [[nodiscard]] std::vector<ImageKey> found() override;
  void remove(const ImageKey& image) override;
  void strike() override;
  [[nodiscard]] std::int64_t images(Medium medium) const override;
  void check_invariants() const override;

 private:
  [[nodiscard]] StateTiersOptions tier_options(const RequestCacheOptions& options, const std::string& folder,
                                               std::uint32_t model);
  [[nodiscard]] const StateStore& store_of(const ImageKey& key) const;
  void write_slot(const Transfer& transfer);
  void read_slot(const Transfer& transfer);
  void strike_files();
  void strike_objects();

  test::Random& random_;
  MarkWorld& world_;
  std::string folder_;
  FaultCounts& counts_;
  Stream stream_ = Stream::default_stream();
  DeviceResource device_memory_;
  PinnedResource host_memory_;
  std::vector<StateStore> states_;
  StateStore kv_;
  std::shared_ptr<InProcessObjects> objects_;
  AbsentStore client_;
  std::unordered_map<TransferId, Transfer> transfers_;
  std::vector<std::byte> bytes_, expected_;
  std::optional<StateTiers> tiers_;  ///< uses all of these
};

}  // namespace stateport::soak
