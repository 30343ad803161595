// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/memory_resource.hpp>
#include <stateport/tiers/remote_options.hpp>

#include "move/copy_lane.hpp"
#include "move/lower_tier.hpp"
#include "move/transfer_executor.hpp"

#include <cstddef>
#include <optional>
#include <vector>

namespace stateport::tiers {

/// The remote tier of a StateTiers: the memory in which sets of objects wait, and the tier as the executor sees it.
class RemoteObjects final : public LowerTier {
 public:
  /// `scrub`: of its staging memory. Throws as the constructor of StateTiers.
  RemoteObjects(MemoryResource& memory, const RemoteOptions& options, const ModelId& model, bool scrub);
  RemoteObjects(const RemoteObjects&) = delete;
  RemoteObjects& operator=(const RemoteObjects&) = delete;
  ~RemoteObjects() override;

  [[nodiscard]] std::size_t encodings() const noexcept { return options_.encodings.size(); }
  [[nodiscard]] const RemoteTier& tier() const noexcept { return *tier_; }
  [[nodiscard]] TransferExecutor::Below below() noexcept {
    return {.tier = this,
            .staging = &*staging_,
            .objects = true,
            .transfers_max = options_.transfers_max,
            .kv_bytes_together = 0};
  }
  /// The copiers between objects and the device's store of a kind, and its images in host memory if there are any.
  void add_routes(std::vector<RouteCopier>& copiers, const CopyRoutes& routes, std::size_t kind,
                  const StateStore& device, const StateStore* images) const;

  bool write(std::span<const Image> images, std::uint64_t ticket) override;
  bool read(const ImageKey& key, std::span<std::byte> image, std::uint64_t ticket) override;
  bool find(const ImageKey& key, std::uint64_t ticket) override;
  void remove(const ImageKey& key) override;
  std::size_t poll(std::span<Completion> completions) override;

 private:
  [[nodiscard]] const SharedLayout& layout_of(std::size_t kind) const;
  [[nodiscard]] std::span<const ObjectSet> sets_of(std::size_t kind) const;
  [[nodiscard]] std::span<std::byte> staging_memory() const;

  RemoteOptions options_;
  std::optional<HostTier> staging_;
  std::optional<RemoteTier> tier_;
  std::vector<RemoteTierCompletion> completions_;
};

}  // namespace stateport::tiers
