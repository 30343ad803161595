// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/remote_tier.hpp>

#include <stateport/core/model/error.hpp>

#include "remote/forget_request.hpp"
#include "remote/remote_requests.hpp"
#include "remote/set_request.hpp"

#include <algorithm>
#include <exception>
#include <new>
#include <numeric>
#include <optional>
#include <utility>

namespace stateport {
namespace {

using tiers::ForgetShare;
using tiers::SetRequest;

/// Sets of one content and group stand behind each other.
std::vector<ObjectSet> in_groups(std::vector<ObjectSet> sets) {
  std::ranges::stable_sort(sets, {},
                           [](const ObjectSet& set) { return std::pair(set.options().content, set.options().group); });
  return sets;
}

std::span<const ObjectSet> sets_of(std::span<const ObjectSet> sets, CacheContent content, std::int32_t group) noexcept {
  const auto is_of = [&](const ObjectSet& set) {
    return set.options().content == content && set.options().group == group;
  };
  const auto first = std::ranges::find_if(sets, is_of);
  return {first, std::find_if_not(first, sets.end(), is_of)};
}

void validate(std::span<const ObjectSet> sets, const RemoteQueueLimits& limits) {
  require(!sets.empty(), "sets.size()", sets.size(), "a tier holds objects of at least one set");
  for (const ObjectSet& set : sets) {
    const auto alike = sets_of(sets, set.options().content, set.options().group);
    require(set.size() == alike.front().size(), "sets.size()", set.size(), "differs from that of another encoding");
    require(limits.queue_bytes >= set.bytes(), "queue_bytes", limits.queue_bytes, "is less than a set of objects");
    require(limits.queue_requests >= SetRequest::parts_of(RemoteCall::exists, alike), "queue_requests",
            limits.queue_requests, "is less than the objects of a key");
  }
}

/// Answers to requests of others would be taken for those to the tier's.
void require_unused(const RemoteStore& store) {
  const RemoteStoreStatistics done = store.statistics();
  const auto answered = std::accumulate(done.answers.begin(), done.answers.end(), std::uint64_t{0});
  require_state(done.accepted_requests <= answered, "RemoteTier", "requests of the store without an answer",
                done.accepted_requests - answered, "must be 0");
}

std::vector<ObjectSet> make_sets(const RemoteOptions& options, const ModelId& model) {
  require(options.store != nullptr, "remote.store", "nullptr", "must be a store");
  require(!options.encodings.empty(), "remote.encodings", "empty", "there must be one that is written");
  require(options.staging_bytes > 0, "remote.staging_bytes", options.staging_bytes, "objects need staging memory");
  std::vector<ObjectSet> sets;
  for (std::size_t group = 0; group < options.states.size(); ++group)
    for (const ObjectEncoding& encoding : options.encodings)
      sets.emplace_back(
          options.states[group].layout, options.states[group].shard,
          ObjectSetOptions{
              .model = model, .group = static_cast<std::int32_t>(group), .grid = options.grid, .encoding = encoding});
  if (options.kv)
    sets.emplace_back(options.kv->layout, options.kv->shard,
                      ObjectSetOptions{.model = model, .content = CacheContent::kv_block, .grid = options.grid});
  return sets;
}

/// Room for the largest encoding of every kind.
HostTierOptions staging_options(const RemoteOptions& options, std::span<const ObjectSet> sets, bool scrub) {
  HostTierOptions host{.staging_bytes = options.staging_bytes, .scrub = scrub};
  host.state_image_bytes.resize(options.states.size());
  for (const ObjectSet& set : sets) {
    const bool is_state = set.options().content == CacheContent::state;
    std::size_t& bytes =
        is_state ? host.state_image_bytes[static_cast<std::size_t>(set.options().group)] : host.kv_image_bytes;
    bytes = std::max(bytes, set.bytes());
  }
  return host;
}

/// Memory that the store knows, as long as this lives.
class Registration {
 public:
  Registration(RemoteStore& store, std::span<std::byte> memory) : store_(store), memory_(memory) {
    store_.register_memory(memory_);
  }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration() {
    try {
      store_.unregister_memory(memory_);
    } catch (const std::exception&) {
      // The store's client may be gone. Nothing uses the memory any more.
    }
  }

 private:
  RemoteStore& store_;
  std::span<std::byte> memory_;
};

/// Staging memory that the store knows.
class Staging {
 public:
  Staging(MemoryResource& memory, const HostTierOptions& options, RemoteStore& store)
      : tier_(memory, options), registration_(store, whole_frames(tier_, options.staging_bytes)) {}
  [[nodiscard]] HostTier* tier() noexcept { return &tier_; }

 private:
  static std::span<std::byte> whole_frames(const HostTier& tier, std::size_t bytes) {
    const std::size_t frame = tier.frame_bytes();
    return {tier.data(), (bytes + frame - 1) / frame * frame};
  }

  HostTier tier_;
  Registration registration_;
};

}  // namespace

class RemoteTier::Impl {
 public:
  Impl(RemoteStore& store, std::vector<ObjectSet> sets) : store_(store), sets_(in_groups(std::move(sets))) {
    validate(sets_, store_.limits());
    require_unused(store_);
    if (store_.needs_registration()) share_memory_.emplace(store_, share_.object);
  }
  Impl(MemoryResource& memory, const RemoteOptions& options, std::vector<ObjectSet> sets, bool scrub)
      : Impl(*options.store, std::move(sets)) {
    staging_.emplace(memory, staging_options(options, sets_, scrub), store_);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { store_.requests_->give_up(); }

  [[nodiscard]] std::span<const ObjectSet> sets() const noexcept { return sets_; }
  [[nodiscard]] std::span<const ObjectSet> require_sets(const ImageKey& key) const {
    require(key.tokens >= 0, "key.tokens", key.tokens, "must not be negative");
    const auto sets = sets_of(sets_, key.content, key.group);
    require(!sets.empty(), "key.group", key.group, "is of no content and group that the tier holds");
    return sets;
  }
  [[nodiscard]] std::size_t bytes_of(const ImageKey& key) const {
    return std::ranges::max(require_sets(key), {}, &ObjectSet::bytes).bytes();
  }
  [[nodiscard]] HostTier* staging() noexcept { return staging_ ? staging_->tier() : nullptr; }
  [[nodiscard]] RemoteTierStatistics statistics() const { return counts_.statistics(); }

  bool add(RemoteCall call, std::uint64_t ticket, const ImageKey& key, std::span<std::byte> set = {}) {
    const std::span<const ObjectSet> sets = require_sets(key);
    if (call == RemoteCall::put || call == RemoteCall::get) {
      const std::size_t wanted = call == RemoteCall::put ? sets.front().bytes() : bytes_of(key);
      require(set.size() == wanted, "set.size()", set.size(), "must be that of the objects of the key");
      require(set.data() != nullptr, "set", "nullptr", "must point to memory");
      store_.require_registered(set);
    }
    tiers::RemoteRequests::Batch one;
    one.push_back(std::make_unique<SetRequest>(call, ticket, key, sets, set, counts_));
    if (store_.requests_->add(one)) return true;
    counts_.refuse(call);
    return false;
  }
  std::size_t poll(std::span<Completion> completions) { return store_.poll(completions); }

  std::optional<TransferStatus> share_forgotten(CacheEpochs& epochs) {
    const ForgetShare::State state = share_.state;
    if (state == ForgetShare::State::idle) begin_share(epochs);
    if (state != ForgetShare::State::ended) return std::nullopt;
    share_.state = ForgetShare::State::idle;
    if (!epochs.adopt(share_.known.all())) return TransferStatus::no_room;
    const auto is_there = [&](const ForgetRecord& record) { return share_.known.holds(record); };
    if (share_.status != TransferStatus::done || std::ranges::all_of(epochs.forgotten(), is_there))
      return share_.status;
    begin_share(epochs);  // the cache has forgotten more in between
    return std::nullopt;
  }

 private:
  /// If the queue is full, the next call tries again.
  void begin_share(const CacheEpochs& epochs) {
    share_.known.clear();
    for (const ForgetRecord& record : epochs.forgotten()) share_.known.add(record);
    tiers::RemoteRequests::Batch one;
    share_.state = ForgetShare::State::under_way;
    const auto give_up = [&] {
      one.clear();
      share_.state = ForgetShare::State::idle;
    };
    try {
      one.push_back(std::make_unique<tiers::ForgetRequest>(sets_.front().options().model, share_));
      if (!store_.requests_->add(one)) give_up();
    } catch (const std::bad_alloc&) {
      give_up();
      throw;
    }
  }

  RemoteStore& store_;
  std::vector<ObjectSet> sets_;
  tiers::RemoteTierCounts counts_;
  std::optional<Staging> staging_;
  ForgetShare share_;
  std::optional<Registration> share_memory_;
};

RemoteTier::RemoteTier(RemoteStore& store, std::vector<ObjectSet> sets)
    : impl_(std::make_unique<Impl>(store, std::move(sets))) {}
RemoteTier::RemoteTier(MemoryResource& memory, const RemoteOptions& options, const ModelId& model, bool scrub)
    : impl_(std::make_unique<Impl>(memory, options, make_sets(options, model), scrub)) {}
RemoteTier::RemoteTier(RemoteTier&&) noexcept = default;
RemoteTier& RemoteTier::operator=(RemoteTier&&) noexcept = default;
RemoteTier::~RemoteTier() = default;

std::span<const ObjectSet> RemoteTier::sets(CacheContent content, std::int32_t group) const noexcept {
  return sets_of(impl_->sets(), content, group);
}
std::size_t RemoteTier::bytes(const ImageKey& key) const {
  return impl_->bytes_of(key);
}
HostTier* RemoteTier::staging() const noexcept {
  return impl_->staging();
}

bool RemoteTier::write(std::uint64_t ticket, const ImageKey& key, std::span<std::byte> set) {
  return impl_->add(RemoteCall::put, ticket, key, set);
}
bool RemoteTier::read(std::uint64_t ticket, const ImageKey& key, std::span<std::byte> set) {
  return impl_->add(RemoteCall::get, ticket, key, set);
}
bool RemoteTier::find(std::uint64_t ticket, const ImageKey& key) {
  return impl_->add(RemoteCall::exists, ticket, key);
}
bool RemoteTier::remove(const ImageKey& key) {
  return impl_->add(RemoteCall::remove, 0, key);
}

std::optional<TransferStatus> RemoteTier::share_forgotten(CacheEpochs& epochs) {
  return impl_->share_forgotten(epochs);
}

std::size_t RemoteTier::poll(std::span<Completion> completions) {
  return impl_->poll(completions);
}
RemoteTierStatistics RemoteTier::statistics() const {
  return impl_->statistics();
}

}  // namespace stateport
