// SPDX-License-Identifier: Apache-2.0
#include "real_tiers.hpp"

#include <stateport/backends/transfer.hpp>

#include "../tiers/remote/lane_store.hpp"
#include "violation.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

namespace stateport::soak {

namespace {

constexpr std::int64_t dim = 32;
constexpr std::int64_t heads = 2;

StateSpec state_spec() {
  return StateSpec::uniform(1, {.window = 3, .dim = dim}, {.shape = {heads, 4, 8}});
}
StateSpec kv_spec(const RequestCacheOptions& options) {
  return StateSpec({{.type = ElementType::bf16, .shape = {options.block_size_tokens, heads, 8}}});
}

/// Bytes that follow from `content`, behind it.
void fill(std::vector<std::byte>& bytes, const void* content, std::size_t size, std::size_t total) {
  must(size <= total, "a slot has no room for its marks");
  bytes.resize(total);
  std::memcpy(bytes.data(), content, size);
  Mark mark = 0;
  for (std::size_t at = 0; at < size; at += sizeof(Mark)) {
    Mark word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof(word), size - at));
    mark = next_mark(mark, word);
  }
  for (std::size_t at = size; at < total; ++at) bytes[at] = static_cast<std::byte>(mark = next_mark(mark, at));
}

std::size_t slot_bytes(const StateStore& store) {
  std::size_t bytes = 0;
  for (const StateTensorView& tensor : store.tensors()) bytes += tensor.spec.natural_bytes();
  return bytes;
}

class AbsentLane final : public test::ObjectsLane {
 public:
  AbsentLane(std::shared_ptr<InProcessObjects> objects, const std::atomic<bool>& is_away)
      : ObjectsLane(std::move(objects)), is_away_(is_away) {}

  void carry_out(RemoteCall call, std::span<const RemoteObject> objects, std::span<Completion> answers) override {
    ObjectsLane::carry_out(call, objects, answers);
    if (!is_away_) return;
    for (Completion& answer : answers) answer.status = TransferStatus::failed;
  }

 private:
  const std::atomic<bool>& is_away_;
};

}  // namespace

AbsentStore::AbsentStore(std::shared_ptr<InProcessObjects> objects) {
  std::vector<std::unique_ptr<RemoteLane>> lanes;
  lanes.push_back(std::make_unique<AbsentLane>(std::move(objects), is_away));
  serve(std::move(lanes), 0);
}

void RealTiers::set_image_bytes(RequestCacheOptions& options) {
  const auto bytes = [](const StateSpec& spec) {
    return static_cast<std::int64_t>(ImageLayout(spec, {}).image_bytes());
  };
  options.tiers.state_image_bytes = bytes(state_spec()) * static_cast<std::int64_t>(group_count(options));
  options.tiers.kv_image_bytes = bytes(kv_spec(options));
}

RealTiers::RealTiers(test::Random& random, const RequestCacheOptions& options, MarkWorld& world,
                     const std::string& folder, std::uint32_t model, std::shared_ptr<InProcessObjects> objects,
                     FaultCounts& counts)
    : random_(random),
      world_(world),
      folder_(folder),
      counts_(counts),
      kv_(device_memory_, kv_spec(options), {.slots = kv_blocks(options)}),
      objects_(std::move(objects)),
      client_(objects_) {
  for (std::size_t g = 0; g < group_count(options); ++g)
    states_.emplace_back(device_memory_, state_spec(), StoreOptions{.slots = checkpoint_slots(options, g)});
  tiers_.emplace(host_memory_, tier_options(options, folder, model));
}

RealTiers::~RealTiers() = default;

StateTiersOptions RealTiers::tier_options(const RequestCacheOptions& options, const std::string& folder,
                                          std::uint32_t model) {
  const TierOptions& tiers = options.tiers;
  const std::int64_t frame = std::max(tiers.state_image_bytes, tiers.kv_image_bytes);
  const TensorSplit by_head{.axis = 0, .bands = {{.extent = heads, .parts = heads}}};
  const SharedLayout state{
      .layout = ModelLayout(state_spec(), {.axis = 1, .bands = {{.extent = dim, .parts = heads}}}, by_head)};
  StateTiersOptions all{
      .kv = &kv_,
      .model = ModelId(model),
      .host_budget_bytes = static_cast<std::size_t>(tiers.host_bytes),
      .files =
          FileTierOptions{.folder = folder, .capacity_bytes = static_cast<std::uint64_t>(tiers.file_bytes), .lanes = 1},
      .staging_bytes = static_cast<std::size_t>(32 * frame)};
  for (const StateStore& store : states_) all.states.push_back(&store);
  if (tiers.remote_bytes == 0) return all;
  all.remote = RemoteOptions{
      .store = &client_,
      .states = std::vector(states_.size(), state),
      .kv = SharedLayout{.layout = ModelLayout(kv_spec(options),
                                               {{.axis = 1, .bands = {{.extent = heads, .parts = heads}}}})},
      .staging_bytes = static_cast<std::size_t>(64 * frame)};
  return all;
}

const StateStore& RealTiers::store_of(const ImageKey& key) const {
  return key.content == CacheContent::state ? states_.at(static_cast<std::size_t>(key.group)) : kv_;
}

/// Writes the bytes that the engine's pass would have written, on the host's side of the device's memory.
void RealTiers::write_slot(const Transfer& transfer) {
  const StateStore& store = store_of(transfer.image);
  if (transfer.image.content == CacheContent::state) {
    const StateMark& mark = world_.checkpoint(static_cast<std::size_t>(transfer.image.group), transfer.place);
    must(mark.recurrent_tokens == transfer.image.tokens, "a store of a state after other tokens");
    fill(bytes_, &mark, sizeof(mark), slot_bytes(store));
  } else {
    const auto block = world_.block(transfer.place);
    must(block.back() != 0, "a store of KV that was never written");
    fill(bytes_, block.data(), block.size_bytes(), slot_bytes(store));
  }
  std::size_t at = 0;
  for (const StateTensorView& tensor : store.tensors()) {
    copy_bytes(stream_, tensor.slot_data(SlotId{transfer.place}), bytes_.data() + at, tensor.spec.natural_bytes());
    at += tensor.spec.natural_bytes();
  }
  stream_.synchronize();
}

void RealTiers::read_slot(const Transfer& transfer) {
  const StateStore& store = store_of(transfer.image);
  bytes_.resize(slot_bytes(store));
  std::size_t at = 0;
  for (const StateTensorView& tensor : store.tensors()) {
    copy_bytes(stream_, bytes_.data() + at, tensor.slot_data(SlotId{transfer.place}), tensor.spec.natural_bytes());
    at += tensor.spec.natural_bytes();
  }
  stream_.synchronize();
  std::size_t size = sizeof(StateMark);
  if (transfer.image.content == CacheContent::state) {
    std::memcpy(&world_.checkpoint(static_cast<std::size_t>(transfer.image.group), transfer.place), bytes_.data(),
                size);
  } else {
    const auto block = world_.block(transfer.place);
    size = block.size_bytes();
    std::memcpy(block.data(), bytes_.data(), size);
  }
  fill(expected_, bytes_.data(), size, bytes_.size());
  must(bytes_ == expected_, "an image was loaded with other bytes than were stored");
}

void RealTiers::take(TransferPlan transfers) {
  for (const Transfer& transfer : transfers) {
    if (transfer.kind == Transfer::Kind::store) write_slot(transfer);
    if (transfer.kind != Transfer::Kind::drop) transfers_.emplace(transfer.id, transfer);
  }
  tiers_->execute(stream_, transfers);
}

void RealTiers::poll(std::vector<TransferResult>& results, bool all) {
  if (!all && random_.chance(30)) return;
  std::array<TransferResult, 64> some;
  if (all && tiers_->files() != nullptr) tiers_->files()->wait_idle();
  const std::size_t count = tiers_->poll(stream_, some);
  for (const TransferResult& result : std::span(some).first(count)) {
    const auto found = transfers_.find(result.id);
    must(found != transfers_.end(), "an answer without a request, or a second one");
    const Transfer& transfer = found->second;
    counts_.failed_transfers += transfer.kind != Transfer::Kind::find && result.status != TransferStatus::done;
    if (transfer.kind == Transfer::Kind::load) {
      if (result.status == TransferStatus::done) {
        read_slot(transfer);
      } else if (transfer.image.content == CacheContent::state) {
        world_.checkpoint(static_cast<std::size_t>(transfer.image.group), transfer.place) = {};
      } else {
        std::ranges::fill(world_.block(transfer.place), 0);
      }
    }
    transfers_.erase(found);
    results.push_back(result);
  }
}

std::vector<ImageKey> RealTiers::found() {
  return tiers_->files() == nullptr ? std::vector<ImageKey>() : tiers_->files()->keys();
}

void RealTiers::remove(const ImageKey& image) {
  const Transfer drop{.kind = Transfer::Kind::drop, .image = image, .from = Medium::file, .to = Medium::file};
  tiers_->execute(stream_, {&drop, 1});
}

void RealTiers::strike() {
  if (client_.is_away || random_.chance(20)) {
    client_.is_away = !client_.is_away;
    counts_.store_absences += client_.is_away;
  } else if (random_.chance(50)) {
    strike_files();
  } else {
    strike_objects();
  }
}

/// A file vanishes, or one of its bits turns.
void RealTiers::strike_files() {
  std::vector<std::filesystem::path> files;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, ignored))
    if (entry.is_regular_file(ignored)) files.push_back(entry.path());
  if (files.empty()) return;
  const auto& path = files[static_cast<std::size_t>(random_.between(0, std::ssize(files) - 1))];
  if (random_.chance(30)) {
    counts_.vanished_images += std::filesystem::remove(path, ignored);
    return;
  }
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path, ignored));
  if (ignored || size <= 0) return;
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const std::int64_t at = random_.between(0, size - 1);
  file.seekg(at);
  const int byte = file.get();
  if (!file) return;
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 4));
  ++counts_.damaged_images;
}

void RealTiers::strike_objects() {
  const std::vector<std::string> keys = objects_->keys();
  if (keys.empty()) return;
  const std::string& key = keys[static_cast<std::size_t>(random_.between(0, std::ssize(keys) - 1))];
  if (random_.chance(30)) {
    counts_.vanished_images += objects_->erase(key);
    return;
  }
  auto bytes = objects_->read(key);
  if (!bytes) return;
  if (random_.chance(20)) bytes->resize(bytes->size() / 2);
  (*bytes)[static_cast<std::size_t>(random_.between(0, std::ssize(*bytes) - 1))] ^= std::byte{4};
  counts_.damaged_images += objects_->overwrite(key, *bytes);
}

std::int64_t RealTiers::images(Medium medium) const {
  if (medium == Medium::host) return static_cast<std::int64_t>(tiers_->host().usage().images);
  return tiers_->files() == nullptr ? 0 : std::ssize(tiers_->files()->keys());
}

void RealTiers::check_invariants() const {
  tiers_->check_invariants();
  objects_->check_invariants();
}

}  // namespace stateport::soak
