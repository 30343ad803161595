// SPDX-License-Identifier: Apache-2.0
#include "engine_tiers.hpp"

#include "move/make_state_tiers.hpp"
#include "state_stores.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <utility>

namespace stateport::engine {
namespace {

/// KV blocks that a tier has room for beside each checkpoint.
constexpr std::int64_t blocks_of_checkpoint = 4;

std::size_t state_image_bytes(const CacheOptions& options, const RequestCacheOptions& cache) {
  std::size_t bytes = 0;
  for (std::size_t g = 0; g < group_count(cache); ++g)
    bytes += ImageLayout(StateStores::spec(options, cache, g), {}).image_bytes();
  return bytes;
}

std::size_t kv_image_bytes(const CacheOptions& options) {
  return ImageLayout(KvStore::spec(Model::attention_layers, options.block_size, options.type), {}).image_bytes();
}

}  // namespace

TierOptions tier_options(const CacheOptions& options, const RequestCacheOptions& cache) {
  TierOptions tiers{.state_image_bytes = static_cast<std::int64_t>(state_image_bytes(options, cache)),
                    .kv_image_bytes = static_cast<std::int64_t>(kv_image_bytes(options)),
                    .write_through = options.tiers.write_through};
  const std::int64_t checkpoint = tiers.state_image_bytes + blocks_of_checkpoint * tiers.kv_image_bytes;
  tiers.host_bytes = options.tiers.host * checkpoint;
  tiers.file_bytes = options.tiers.files * checkpoint;
  if (options.tiers.short_queue) tiers.queue_bytes = checkpoint;
  if (options.tiers.slow_files) {
    // A state and a block cost as much as the tokens of two blocks.
    tiers.tokens_per_s = 1;
    tiers.host_bytes_per_s = static_cast<double>(checkpoint);
    tiers.file_bytes_per_s = static_cast<double>(tiers.state_image_bytes + tiers.kv_image_bytes) /
                             static_cast<double>(2 * options.block_size);
  }
  return tiers;
}

StateTiersOptions EngineTiers::options_of(const CacheOptions& options, const std::string& folder,
                                          const RequestCache& cache, std::vector<const StateStore*> states) {
  const TierOptions& tiers = cache.options().tiers;
  StateTiersOptions state_tiers{.states = std::move(states),
                                .kv = &kv_,
                                .model = ModelId(options.model),
                                .host_budget_bytes = static_cast<std::size_t>(tiers.host_bytes)};
  if (tiers.file_bytes == 0) return state_tiers;
  state_tiers.files =
      FileTierOptions{.folder = folder, .capacity_bytes = static_cast<std::uint64_t>(tiers.file_bytes), .lanes = 1};
  const std::int64_t frame = std::max(tiers.state_image_bytes, tiers.kv_image_bytes);
  state_tiers.staging_bytes = static_cast<std::size_t>((random_.chance(50) ? 64 : random_.between(1, 4)) * frame);
  return state_tiers;
}

EngineTiers::EngineTiers(const CacheOptions& options, const std::string& folder, RequestCache& cache,
                         std::vector<const StateStore*> states, StateStore kv, TierCounts& counts,
                         EngineIntegrity* integrity)
    : cache_(cache),
      counts_(counts),
      integrity_(integrity),
      random_(options.tiers.seed),
      hasty_(options.tiers.hasty),
      kv_(std::move(kv)),
      tiers_(make_state_tiers(memory_, options_of(options, folder, cache, std::move(states)), LateLaneMaker(lane_))) {
  // Otherwise an earlier content of the memory could pass for an image that was never loaded.
  std::size_t bytes = 0;
  for (std::int32_t kind = 0; kind < tiers_.host().kinds(); ++kind)
    bytes = std::max(bytes, static_cast<std::size_t>(tiers_.host().places(kind)) * tiers_.host().stride_bytes(kind));
  std::memset(tiers_.host().data(), 0xA5, bytes);
  attach();
  if (options.tiers.damage && tiers_.files() != nullptr) damage(folder, options.tiers.seed);
}

/// Files have random names, so the first image in a file decides its damage.
void EngineTiers::damage(const std::string& folder, std::uint64_t seed) const {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::array<char, ImageLayout::alignment_bytes> page = {};
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    if (!file.read(page.data(), page.size())) continue;
    const auto facts = read_image_facts(std::as_bytes(std::span(page)));
    if (!facts) continue;
    const std::uint64_t draw = (facts->key.prefix.words[0] ^ seed) % 16;
    if (draw == 0) std::filesystem::remove(entry.path());
    if (draw > 2 || draw == 0) continue;
    file.seekg(static_cast<std::streamoff>(facts->header_bytes));
    const auto byte = static_cast<char>(file.peek() ^ 1);
    file.seekp(static_cast<std::streamoff>(facts->header_bytes));
    file.put(byte);
  }
}

void EngineTiers::attach() {
  if (tiers_.files() == nullptr) return;
  counts_.foreign_images += static_cast<std::int64_t>(tiers_.files()->findings().foreign_images);
  for (const ImageKey& image : tiers_.files()->keys()) {
    if (cache_.tiers()->attach(Medium::file, image)) {
      attached_.push_back(image);
      continue;
    }
    const Transfer drop{.kind = Transfer::Kind::drop, .image = image, .from = Medium::file, .to = Medium::file};
    tiers_.execute(stream_, {&drop, 1});
  }
  counts_.attached_images += std::ssize(attached_);
}

void EngineTiers::take(TransferPlan transfers) {
  for (const Transfer& transfer : transfers) {
    if (transfer.kind != Transfer::Kind::drop) transfers_.emplace(transfer.id, transfer);
    if (integrity_ != nullptr && transfer.kind == Transfer::Kind::load && transfer.image.content == CacheContent::state)
      integrity_->expect_load(transfer.image.group, SlotId{transfer.place});
  }
  let_files_end();
  tiers_.execute(stream_, transfers);
}

void EngineTiers::take_all(TransferPlan transfers) {
  if (integrity_ != nullptr) integrity_->begin();
  take(transfers);
  if (integrity_ != nullptr) integrity_->end();
}

void EngineTiers::poll() {
  if (random_.chance(40)) return;
  let_files_end();
  lane_->advance(static_cast<std::size_t>(random_.between(0, 4)));
  settle();
}

void EngineTiers::settle() {
  std::array<TransferResult, 64> some;
  std::vector<TransferResult> results;
  while (const std::size_t count = tiers_.poll(stream_, some))
    results.insert(results.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(count));
  std::ranges::sort(results, {}, &TransferResult::id);
  for (const TransferResult& result : results) {
    const auto found = transfers_.find(result.id);
    count(found->second, result.status);
    transfers_.erase(found);
  }
  take_all(cache_.tiers()->settle(results).transfers);
}

void EngineTiers::count(const Transfer& transfer, TransferStatus status) {
  const bool is_state = transfer.image.content == CacheContent::state;
  if (status != TransferStatus::done) {
    ++(transfer.kind == Transfer::Kind::load ? counts_.lost_images : counts_.refused_images);
    return;
  }
  if (transfer.kind == Transfer::Kind::load) {
    ++(is_state ? counts_.loaded_states : counts_.loaded_blocks);
    counts_.restored_states +=
        is_state && transfer.from == Medium::file && std::ranges::find(attached_, transfer.image) != attached_.end();
  } else {
    ++(is_state ? counts_.stored_states : counts_.stored_blocks);
  }
}

bool EngineTiers::under_way() const {
  return cache_.tiers()->transfers_under_way() > 0 || tiers_.in_flight() > 0 || lane_->waiting() > 0;
}

bool EngineTiers::wait() {
  if (!under_way()) return false;
  if (tiers_.files() != nullptr) tiers_.files()->wait_idle();
  lane_->advance();
  settle();
  return true;
}

void EngineTiers::wait_for_all() {
  constexpr int rounds_max = 10000;
  for (int rounds = 0; wait(); ++rounds)
    if (rounds == rounds_max) throw std::logic_error("EngineTiers: a transfer does not end");
}

void EngineTiers::drain() {
  wait_for_all();
  if (tiers_.files() == nullptr) return;
  for (std::int64_t written = -1; written < cache_.tiers()->usage(Medium::file).bytes_written;) {
    written = cache_.tiers()->usage(Medium::file).bytes_written;
    take_all(cache_.tiers()->drain());
    wait_for_all();
  }
}

/// Called before anything else happens to host memory, and before answers are taken: then the speed of the file threads
/// does not change a run.
void EngineTiers::let_files_end() const {
  if (tiers_.files() != nullptr && !hasty_) tiers_.files()->wait_idle();
}

void EngineTiers::check_invariants() const {
  tiers_.check_invariants();
}

}  // namespace stateport::engine
