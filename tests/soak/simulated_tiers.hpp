// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "mark_world.hpp"
#include "movers.hpp"
#include "random_numbers.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

namespace stateport::soak {

/// Images by their keys.
struct Image {
  StateMark state;
  std::vector<Mark> kv;
};
struct ImageKeyHash {
  std::size_t operator()(const ImageKey& key) const noexcept {
    return static_cast<std::size_t>(key.prefix.words[0] ^ (key.prefix.words[1] << 1) ^
                                    static_cast<std::uint64_t>(key.tokens * 8 + key.group * 2) ^
                                    static_cast<std::uint64_t>(key.content));
  }
};
using Images = std::unordered_map<ImageKey, Image, ImageKeyHash>;

/// A store that engines share. It evicts the oldest images first, and may be away.
struct SharedImages {
  explicit SharedImages(std::size_t capacity) : capacity_images(capacity) {}
  void put(const ImageKey& key, const Image& image);

  std::size_t capacity_images;
  bool is_away = false;
  Images images;
  std::deque<ImageKey> order;
};

/// Tiers without bytes. Transfers end late, in any order, and some fail.
class SimulatedTiers final : public Mover {
 public:
  /// `files` outlives the engine, `remote` is shared.
  SimulatedTiers(test::Random& random, MarkWorld& world, std::shared_ptr<Images> files,
                 std::shared_ptr<SharedImages> remote, FaultCounts& counts);

  void take(TransferPlan transfers) override;
  void poll(std::vector<TransferResult>& results, bool all) override;
  [[nodiscard]] std::size_t under_way() const override { return moving_.size(); }
  [[nodiscard]] std::vector<ImageKey> found() override;
  void remove(const ImageKey& image) override { files_->erase(image); }
  void strike() override;
  [[nodiscard]] std::int64_t images(Medium medium) const override {
    return static_cast<std::int64_t>(medium == Medium::host ? host_.size() : files_->size());
  }
  void check_invariants() const override;

 private:
  struct Moving {
    Transfer transfer;
    bool is_there = false;  ///< the image that it reads exists
    Image image;
  };
  void begin(const Transfer& transfer);
  void read_device(const Transfer& transfer, Image& image);
  [[nodiscard]] TransferStatus end(const Moving& moving);
  void write(const Transfer& transfer, const Image* image);
  [[nodiscard]] Images& tier(Medium medium);

  test::Random& random_;
  MarkWorld& world_;
  Images host_;
  std::shared_ptr<Images> files_;
  std::shared_ptr<SharedImages> remote_;
  FaultCounts& counts_;
  std::vector<Moving> moving_;
};

}  // namespace stateport::soak
