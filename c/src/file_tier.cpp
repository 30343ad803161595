// SPDX-License-Identifier: Apache-2.0
// Images in files, from and to memory of the host.
#include <stateport/c/file_tier.h>
#include <stateport/tiers/file_tier.hpp>

#include "arguments.hpp"
#include "guard.hpp"
#include "handle_table.hpp"
#include "spec_object.hpp"
#include "transfers.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

using namespace stateport;
using namespace stateport::c;

namespace {

constexpr std::size_t answers_at_once = 64;

struct FilesObject final : Object {
  static constexpr Kind kind = Kind::file_tier;
  FilesObject(const FileTierOptions& options, std::vector<ImageLayout> of)
      : Object(kind), layouts(of), tier(options, std::move(of)) {}

  [[nodiscard]] const ImageLayout& layout(const ImageKey& key) const {
    const auto found = std::ranges::find_if(layouts, [&](const ImageLayout& layout) { return layout.holds(key); });
    require(found != layouts.end(), "group", key.group, "has no images of this content here");
    return *found;
  }

  std::vector<ImageLayout> layouts;
  FileTier tier;
};

using HeldFiles = Held<FilesObject>;

std::vector<ImageLayout> read_layouts(const stateport_file_tier_options& given) {
  const auto name = array(static_cast<const char*>(given.model), given.model_bytes, "model");
  require(!name.empty(), "model_bytes", given.model_bytes, "other models may use the folder");
  ImageLayoutOptions options{.model = ModelId(std::string_view(name.data(), name.size())),
                             .shard = {given.layer_begin, given.layer_end, given.head_group, given.head_groups}};
  std::vector<ImageLayout> layouts;
  for (stateport_spec* spec : array(given.states, given.state_count, "states")) {
    options.group = static_cast<std::int32_t>(layouts.size());
    layouts.emplace_back(find<SpecObject>(spec, "states")->spec, options);
  }
  if (given.kv == nullptr) return layouts;
  options.content = CacheContent::kv_block;
  options.group = 0;
  layouts.emplace_back(find<SpecObject>(given.kv, "kv")->spec, options);
  return layouts;
}

std::shared_ptr<FilesObject> make_files(const stateport_file_tier_options* options) {
  const auto given = read_struct<stateport_file_tier_options>(options, "options");
  require(given.folder != nullptr, "folder", "null", "must be the path of a folder");
  FileTierOptions wanted{
      .folder = given.folder, .capacity_bytes = given.file_bytes, .free_floor_bytes = given.free_floor_bytes};
  if (given.queue_bytes != 0) wanted.queue_bytes = given.queue_bytes;
  if (given.lanes != 0) wanted.lanes = given.lanes;
  wanted.scrub = given.scrub != 0;
  return std::make_shared<FilesObject>(wanted, read_layouts(given));
}

stateport_file_tier_info describe(const FileTier& tier) {
  const FileTierStatistics done = tier.statistics();
  const FolderFindings& found = tier.findings();
  return {.images = done.images,
          .file_bytes = done.held_bytes,
          .write_queue_bytes = done.write_queue_bytes,
          .read_queue_bytes = done.read_queue_bytes,
          .found_images = found.images,
          .foreign_files = found.foreign_files,
          .foreign_images = found.foreign_images,
          .damaged_files = found.damaged_files,
          .unreadable_files = found.unreadable_files,
          .dropped_temporaries = found.dropped_temporaries,
          .written_images = done.written_images,
          .written_bytes = done.written_bytes,
          .read_images = done.read_images,
          .read_bytes = done.read_bytes,
          .write_seconds = done.write_seconds,
          .read_seconds = done.read_seconds,
          .unscrubbed = done.unscrubbed};
}

ImageKey key_of(std::int32_t content, std::int32_t group) {
  return {.content = enumerator(content, CacheContent::state, "content"), .group = group};
}

std::int64_t left(std::uint64_t limit, std::uint64_t used) noexcept {
  return static_cast<std::int64_t>(limit - std::min(limit, used));
}

}  // namespace

stateport_status stateport_file_tier_create(const stateport_file_tier_options* options, stateport_file_tier** out) {
  return guarded([&] { create(out, [&] { return make_files(options); }); });
}

stateport_status stateport_file_tier_destroy(stateport_file_tier* tier) {
  return guarded([&] { destroy<FilesObject>(tier, "tier"); });
}

stateport_status stateport_file_tier_describe(stateport_file_tier* tier, stateport_file_tier_info* out) {
  return guarded([&] {
    const HeldFiles held(tier, "tier");
    Out(out, "out").write(describe(held->tier));
  });
}

stateport_status stateport_file_tier_layout(stateport_file_tier* tier, int32_t content, int32_t group,
                                            stateport_image_layout* out) {
  return guarded([&] {
    const HeldFiles held(tier, "tier");
    const Out result(out, "out");
    const ImageLayout& layout = held->layout(key_of(content, group));
    result.write({.image_bytes = layout.image_bytes(),
                  .header_bytes = layout.header_bytes(),
                  .sections = layout.spec().tensors().size()});
  });
}

stateport_status stateport_file_tier_section(stateport_file_tier* tier, int32_t content, int32_t group, size_t index,
                                             uint64_t* offset, uint64_t* bytes) {
  return guarded([&] {
    const HeldFiles held(tier, "tier");
    std::uint64_t& begin = checked(offset, "offset");
    std::uint64_t& length = checked(bytes, "bytes");
    const ImageLayout& layout = held->layout(key_of(content, group));
    require(index < layout.spec().tensors().size(), "index", index, "must be below the number of sections");
    begin = layout.section_offset(index);
    length = layout.section_bytes(index);
  });
}

stateport_status stateport_file_tier_write(stateport_file_tier* tier, uint64_t id, const stateport_image_key* keys,
                                           const void* const* images, size_t count) {
  return guarded([&] {
    const HeldFiles held(tier, "tier");
    const std::vector<ImageKey> named = read_keys(keys, count, "keys");
    const auto memory = array(images, count, "images");
    std::vector<FileImage> wanted;
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < count; ++i) {
      wanted.push_back({named[i], static_cast<const std::byte*>(memory[i])});
      bytes += static_cast<std::int64_t>(held->layout(named[i]).image_bytes());
    }
    if (held->tier.write(id, wanted)) return;
    const FileTierStatistics now = held->tier.statistics();
    const FileTierOptions& options = held->tier.options();
    throw NoCapacity(
        "bytes in the file tier or its queue", bytes,
        std::min(left(options.capacity_bytes, now.held_bytes), left(options.queue_bytes, now.write_queue_bytes)));
  });
}

stateport_status stateport_file_tier_read(stateport_file_tier* tier, uint64_t id, const stateport_image_key* key,
                                          void* image, size_t bytes) {
  return guarded([&] {
    const HeldFiles held(tier, "tier");
    const ImageKey wanted = from_c(checked(key, "key"));
    if (held->tier.read(id, wanted, array(static_cast<std::byte*>(image), bytes, "image"))) return;
    throw NoCapacity("bytes in the queue of reads", static_cast<std::int64_t>(bytes),
                     left(held->tier.options().queue_bytes, held->tier.statistics().read_queue_bytes));
  });
}

stateport_status stateport_file_tier_poll(stateport_file_tier* tier, stateport_transfer_result* out, size_t capacity,
                                          size_t* count) {
  return guarded([&] {
    const HeldFiles held(tier, "tier");
    const auto room = array(out, capacity, "out");
    std::size_t& reported = checked(count, "count");
    std::array<Completion, answers_at_once> answers;
    std::size_t taken = 0;
    std::size_t got = 0;
    do {
      got = held->tier.poll(std::span(answers).first(std::min(answers.size(), room.size() - taken)));
      for (const Completion& answer : std::span(answers).first(got))
        room[taken++] = to_c(TransferResult{answer.ticket, answer.status});
    } while (got > 0 && taken < room.size());
    reported = taken;
  });
}

stateport_status stateport_file_tier_wait(stateport_file_tier* tier) {
  return guarded([&] { HeldFiles(tier, "tier")->tier.wait_idle(); });
}

stateport_status stateport_file_tier_lookup(stateport_file_tier* tier, const stateport_image_key* keys, size_t count,
                                            uint8_t* held) {
  return guarded([&] {
    const HeldFiles files(tier, "tier");
    const auto room = array(held, count, "held");
    const std::vector<ImageKey> named = read_keys(keys, count, "keys");
    for (std::size_t i = 0; i < count; ++i) {
      bool is_held = false;
      files->tier.lookup({&named[i], 1}, {&is_held, 1});
      room[i] = is_held ? 1 : 0;
    }
  });
}

stateport_status stateport_file_tier_remove(stateport_file_tier* tier, const stateport_image_key* keys, size_t count) {
  return guarded([&] {
    const HeldFiles held(tier, "tier");
    for (const ImageKey& key : read_keys(keys, count, "keys")) held->tier.remove(key);
  });
}

stateport_status stateport_file_tier_keys(stateport_file_tier* tier, stateport_image_key* out, size_t capacity,
                                          size_t* count) {
  return guarded([&] {
    const HeldFiles held(tier, "tier");
    const auto room = array(out, capacity, "out");
    std::size_t& reported = checked(count, "count");
    const std::vector<ImageKey> keys = held->tier.keys();
    reported = keys.size();
    for (std::size_t i = 0; i < std::min(room.size(), keys.size()); ++i) room[i] = to_c(keys[i]);
  });
}

stateport_status stateport_file_tier_check(stateport_file_tier* tier) {
  return guarded([&] { HeldFiles(tier, "tier")->tier.check_invariants(); });
}
