// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/ids.hpp>
#include <stateport/core/tier/tier_options.hpp>

#include "tier/tier_finds.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stateport::detail {

/// What a request can load from the tiers.
struct TierHit {
  std::int64_t tokens = 0;         ///< 0: nothing; else the request can start behind these
  std::int64_t walked_tokens = 0;  ///< whose KV is on the device or below
  std::int64_t bytes = 0;          ///< to load
  Medium medium = Medium::device;  ///< the slowest tier that something is loaded from; elsewhere: none of them
  std::int64_t gained_tokens = 0;  ///< beyond the device's own hit
  double saved_s = 0;              ///< time of computing these less that of the load; 0: not known
  bool costs_more = false;         ///< there was a hit, but computing is faster
  bool device_state = false;       ///< its state is on the device: KV alone is loaded
};

/// Decides what lies below the device: what an index of the device gives up is stored in the fastest tier if it is
/// worth its place, moved down when that tier needs room, and named for a load when a prompt can use it. An image
/// leaves the host when its content is on the device again; slower tiers keep theirs. Moves no byte: what it decides is
/// taken as a TransferPlan, and settle() must be told how each transfer ended.
///
/// It is told of all that comes to the device and leaves it, so that it knows for each state which shorter prefix has
/// one: every tier evicts its states by the same policy as the device, and KV goes with the last state that needs it.
///
/// What leaves the device is collected during a call of the cache and decided in flush(), at its end: states first,
/// then KV, from the beginning of a prompt on.
///
/// find(), served() and load() are O(blocks of the prompt), drain() and reset() O(all). The others are O(1) for each
/// image that they name or evict, and for each block before a state that goes, besides the costs of VictimOrder. Not
/// thread-safe.
///
/// The constructor reserves address space for all that the options allow; nothing else allocates, as long as transfers
/// are taken as CacheTiers says.
class TierIndex : private TierFinds {
 public:
  using Setup = TierSetup;
  explicit TierIndex(const Setup& setup);

  // What the device has.
  void kv_stored(const PrefixHash& prefix, const PrefixHash& parent, std::int64_t tokens, std::int32_t block);
  void kv_lost(const PrefixHash& prefix);
  /// The state of one group lies in `slot`, once the copies have run that the current call of the cache answers.
  void state_stored(const PrefixHash& prefix, std::size_t group, SlotId slot);
  void state_lost(const PrefixHash& prefix, std::size_t group);
  /// A request with this prompt, as SlotAllocator::note_served. The spans have an element for each whole block.
  PromptPast served(std::span<const BlockHash> keys, std::span<const PrefixHash> prefixes, const PromptFacts& prompt,
                    double now_s);

  /// How many of the leading blocks are before the deepest state that is anywhere; 0: there is none.
  [[nodiscard]] std::size_t deepest_state(std::span<const PrefixHash> prefixes) const noexcept;

  /// The deepest position, at most `usable_tokens` and beyond `device_tokens`, whose state is below the device, or on
  /// it with KV that is not (TierSetup::states_apart), and whose KV is on it (the first `cached_tokens`) or below, if
  /// loading it is worth it. O(blocks).
  [[nodiscard]] TierHit find(std::span<const PrefixHash> prefixes, std::int64_t device_tokens,
                             std::int64_t cached_tokens, std::int64_t usable_tokens);
  /// Names what the hit needs: the KV of blocks from `cached_tokens` on, into kv_blocks[i], and the state, into
  /// slots[g]; none for a state that is on the device. It stays where it is until the load has ended. The places must
  /// be free of what the last flush() stored.
  void load(RequestId request, const TierHit& hit, std::span<const PrefixHash> prefixes, std::int64_t cached_tokens,
            std::span<const std::int32_t> kv_blocks, std::span<const SlotId> slots);
  /// What the hit needs is not evicted before unpin_hit(); between find() and load().
  void pin(const TierHit& hit, std::span<const PrefixHash> prefixes, std::int64_t cached_tokens);
  void unpin_hit(const TierHit& hit, std::span<const PrefixHash> prefixes, std::int64_t cached_tokens);

  /// A request has the last answer that it waits for.
  struct WaitEnd {
    RequestId request;
    bool asked = false;  ///< to its finds; false: to its load
    bool done = false;   ///< the load brought all that it was to bring
  };
  /// The transfer was taken, and not settled.
  [[nodiscard]] bool is_under_way(TransferId id) const noexcept { return under_way_.find(id) != nullptr; }
  /// A transfer ended. Precondition: it was under way.
  std::optional<WaitEnd> settle(const TransferResult& result);
  /// Ends a call of the cache.
  void flush();
  /// Writes all states of faster media to the durable tier, with their KV, as far as there is room; they stay where
  /// they are. What makes room is what that tier alone has, so that it comes to an end.
  void drain();
  /// A tier has this image, from before. A state is there when all of its images were attached, one after the other;
  /// of one that is not whole when another image is attached or a call ends, they are dropped. False: too many.
  bool attach(Medium medium, const ImageKey& image);

  /// Images that come to tiers and leave them in one call, at most.
  [[nodiscard]] std::size_t changes_max() const noexcept { return changes_max_; }
  [[nodiscard]] std::size_t transfers_to_take() const noexcept { return plan_.size(); }
  /// What was decided since the last call; valid until the next call of anything.
  [[nodiscard]] TransferPlan take_transfers();
  [[nodiscard]] std::size_t transfers_under_way() const noexcept { return under_way_.size(); }
  [[nodiscard]] const TierUsage& usage(Medium medium) const noexcept { return level(medium).usage; }
  using TierContents::durable_tier;
  using TierContents::has;
  using TierFinds::ask_kv;
  using TierFinds::ask_states;
  using TierFinds::forget_finds;
  void set_speeds(const TierSpeeds& speeds) noexcept { speeds_ = speeds; }
  /// Forgets everything, in all tiers. Throws InvalidState while transfers are under way.
  void reset();
  /// Throws std::logic_error naming the first violation. O(all).
  void check_invariants() const;

 private:
  struct Load {
    TierHit hit;
    std::int64_t left = 0;  ///< images; 0: nothing is loaded
    bool failed = false;
    std::vector<std::uint32_t> nodes;  ///< of KV, and last that of the state if it is loaded
  };
  struct Leaving {
    std::uint32_t node = none;
    std::int64_t tokens = 0;
  };

  /// The images of one state that were attached, and the last ones.
  struct Found {
    Medium medium = Medium::file;
    PrefixHash prefix;
    std::int64_t tokens = 0;
    std::uint32_t groups = 0;  ///< a bit each; never all
    [[nodiscard]] bool is_of(Medium tier, const ImageKey& image) const noexcept {
      return medium == tier && prefix == image.prefix && tokens == image.tokens;
    }
  };

  void drop_found();
  [[nodiscard]] bool store(std::uint32_t node, CacheContent content, Medium to);
  void store_state(std::uint32_t node);
  void store_kv(std::uint32_t node);
  void write_through(std::uint32_t node);
  void write_all();
  [[nodiscard]] bool write_all_of(std::uint32_t node, Medium to);
  [[nodiscard]] bool write(std::uint32_t node, CacheContent content, Medium to);
  std::optional<WaitEnd> end_part(const UnderWay& part, TransferStatus status);
  [[nodiscard]] std::size_t kv_reaches(std::span<const PrefixHash> prefixes, std::size_t cached,
                                       std::int64_t usable_tokens) const;
  template <class Visit>
  void for_each_pinned(const TierHit& hit, std::span<const PrefixHash> prefixes, std::int64_t cached_tokens,
                       Visit&& visit);

  std::vector<Transfer> taken_;
  std::vector<Load> loads_;  ///< by request
  std::size_t changes_max_ = 0;
  Found found_;
  std::vector<std::uint32_t> leaving_states_;
  std::vector<std::uint32_t> incomplete_;  ///< a group lost its state, which others do not have
  std::vector<Leaving> leaving_kv_;
  std::vector<std::uint32_t> fresh_;  ///< states that this call put on the device, to be written through
  std::vector<std::uint32_t> to_write_;
};

}  // namespace stateport::detail
