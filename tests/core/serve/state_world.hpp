// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "combination.hpp"
#include "random.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace stateport::test {

/// Memory of an engine in which a state is the list of the tokens that it has seen. A pass reads a right state exactly
/// if that list is the beginning of its request. Executes plans and commits of a RequestCache.
class StateWorld final : public KvDirectory {
 public:
  using Tokens = std::vector<Token>;
  /// A conv window is the last inputs of `base` tokens, and perhaps inputs after these; a recurrent state is exact.
  struct Slot {
    std::optional<Tokens> inputs;
    std::int64_t base = 0;
    std::optional<Tokens> recurrent;
    friend bool operator==(const Slot&, const Slot&) = default;
  };

  /// The tokens that KV at one index was computed from, up to its own: their number, and a hash of them. Two lists with
  /// one hash of 64 bits would pass for each other.
  struct KvTokens {
    std::int64_t count = 0;  ///< 0: nothing was written
    std::uint64_t hash = 0;
    friend bool operator==(const KvTokens&, const KvTokens&) = default;
  };

  explicit StateWorld(const RequestCacheOptions& options);

  /// Carries out the plan's work before the pass.
  void before(const PassPlan& plan);
  /// Runs one row over `fed`, its tokens with the drafts. Checks with doctest that the states and the KV that the pass
  /// reads are those of `known`, the tokens before it.
  void run(std::size_t index, const RowPlan& row, const Tokens& known, const Tokens& fed);
  /// The same for a row whose drafts are a tree: parents[i] is the step that draft i follows.
  void run_tree(std::size_t index, const RowPlan& row, const Tokens& known, const Tokens& fed,
                std::span<const std::int32_t> parents);
  /// Checks that these places hold the KV and the state of `tokens`.
  void check(const HitPlaces& places, const Tokens& tokens, std::size_t group);
  /// Writes KV and states of `tokens`, as the engine copies them for an insert, instead of run(). Checks that the KV
  /// before them is right.
  void insert(const RowPlan& row, const Tokens& tokens);
  /// Moves KV of single tokens, in this order: the first work of a commit.
  void move_kv(std::span<const KvMove> moves);
  /// Carries out the commit's work after the pass.
  void after(const PassCommit& commit);
  /// Carries out the copies that the end of a request asks for.
  void after_end(CopyPlan copies);
  /// Transfers take effect in order: a transfer reads its source when it begins. Its destination has the bytes when it
  /// ends. A failed load leaves rubbish.
  void begin(const Transfer& transfer);
  void end(const Transfer& transfer, bool done);
  /// Removes the image that a load or a copy found missing or damaged, as a file tier does.
  void lose(const Transfer& transfer);
  /// The remote tier is the other world's, too, from now on.
  void share_remote(const StateWorld& other) { remote_ = other.remote_; }
  /// Another machine removes some images of the remote tier, or brings some removed ones back.
  void change_remote(Random& random);
  /// All that `is_lost(key)` is gone from the remote tier.
  template <class IsLost>
  void lose_remote(IsLost&& is_lost) {
    for (const ImageKey& key : keys(Medium::remote))
      if (is_lost(key)) remote_->gone.insert(remote_->images.extract(name(key)));
  }
  void bring_remote_back() { remote_->images.merge(remote_->gone); }
  /// Whether this find would succeed now.
  [[nodiscard]] bool has(const Transfer& find) const { return tier(find.from).contains(name(find.image)); }
  /// The remote tier had this image at some time.
  [[nodiscard]] bool was_remote(const ImageKey& image) const;
  [[nodiscard]] std::int64_t images(Medium medium) const;
  [[nodiscard]] std::vector<ImageKey> keys(Medium medium) const;
  /// Copies the other world's tiers.
  void take_images(const StateWorld& other);
  /// Keeps the KV of these tokens where no tier is; forget_kv() loses all that is there.
  void keep_kv(const Tokens& tokens);
  void forget_kv() { tiers_.back().clear(); }
  [[nodiscard]] std::int64_t leading_blocks(std::span<const PrefixHash> blocks) override;
  /// Copies a whole KV block.
  void copy_kv(const SlotCopy& copy);
  /// The memory of these KV blocks, or of these slots for checkpoints, is gone: another has it, or none.
  void wipe(MemoryPart part, std::int32_t first, std::int32_t count);
  /// The state in a slot for checkpoints.
  [[nodiscard]] Slot& checkpoint(std::size_t group, SlotId slot) { return checkpoints(group).at(slot.index()); }
  /// The transfer began and did not find its image.
  [[nodiscard]] bool is_gone(const Transfer& transfer) const { return !moving_.contains(transfer.id); }
  /// The state that a RowState names; none if its two parts differ or were never written.
  [[nodiscard]] std::optional<Tokens> read(const RowState& state, std::size_t group) const;

 private:
  using ImageName = std::tuple<std::array<std::uint64_t, 2>, std::int64_t, CacheContent, std::int32_t>;
  [[nodiscard]] static Slot whole(const Tokens& tokens) { return {tokens, std::ssize(tokens), tokens}; }
  using Slots = std::vector<Slot>;
  void check_kv(const KvRow& kv, const Tokens& tokens) const;
  static void copy(CopyPlan plan, const Slots& from, Slots& to);
  static void check_targets(const GroupCommit& group);
  [[nodiscard]] Slots& checkpoints(std::size_t group) {
    return has_separate_checkpoints(options_) ? checkpoints_ : slots_[group];
  }
  [[nodiscard]] static ImageName name(const ImageKey& key) {
    return {key.prefix.words, key.tokens, key.content, key.group};
  }
  void write(std::size_t group, const RowState& state, const RowPlan& row, const Tokens& known, const Tokens& fed);

  RequestCacheOptions options_;
  std::vector<Slots> slots_;  ///< by group
  Slots checkpoints_;         ///< with separate_checkpoints
  Slots scratch_;
  std::map<std::int32_t, std::vector<Tokens>> steps_;  ///< by row of the pass: the state after each of its tokens
  std::vector<KvTokens> kv_;                           ///< by KV index
  struct Image {
    Slot state;
    std::vector<KvTokens> kv;  ///< of a block
    friend bool operator==(const Image&, const Image&) = default;
  };
  using Images = std::map<ImageName, Image>;
  struct Remote {
    Images images;
    Images gone;
  };
  [[nodiscard]] Images& tier(Medium medium) {
    return medium == Medium::remote ? remote_->images : tiers_[static_cast<std::size_t>(medium)];
  }
  [[nodiscard]] const Images& tier(Medium medium) const { return const_cast<StateWorld*>(this)->tier(medium); }

  std::array<Images, medium_count + 1> tiers_;  ///< by medium, but for the remote one
  std::set<std::pair<Medium, ImageName>> lost_;
  std::shared_ptr<Remote> remote_ = std::make_shared<Remote>();
  std::map<TransferId, Image> moving_;
};

}  // namespace stateport::test
