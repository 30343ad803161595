// SPDX-License-Identifier: Apache-2.0
#include "file/image_directory.hpp"

#include <stateport/core/model/error.hpp>

#include "containers/reserve_amortised.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace stateport {

template <class Change>
void ImageDirectory::change(FileIndex file, Change&& change) {
  File& changed = files_[at(file)];
  held_bytes_ -= changed.held_bytes();
  change(changed);
  held_bytes_ += changed.held_bytes();
}

void ImageDirectory::reserve(std::size_t files, std::size_t images) {
  detail::reserve_amortised(files_, files_.size() + files);
  detail::reserve_amortised(free_, files_.size() + files);
  detail::reserve_amortised(places_, places_.size() + images);
}

ImageDirectory::NewFile::NewFile(std::string file_name, std::size_t images)
    : name(std::make_shared<const std::string>(std::move(file_name))) {
  room.reserve(images);
}

FileIndex ImageDirectory::add_file(NewFile file, std::uint64_t bytes, std::uint64_t hole_bytes, bool foreign) noexcept {
  if (free_.empty()) {
    free_.push_back(static_cast<FileIndex>(files_.size()));
    files_.emplace_back();
  }
  const FileIndex number = free_.back();
  free_.pop_back();
  files_[at(number)] = {.name = std::move(file.name),
                        .bytes = bytes,
                        .given_back_bytes = hole_bytes,
                        .foreign = foreign,
                        .used = true,
                        .removed = std::move(file.room)};
  return number;
}

FileIndex ImageDirectory::add_image(FileIndex file, const ImageKey& key, const ImageLayout& layout,
                                    std::uint64_t offset) noexcept {
  const auto [found, added] = places_.try_emplace(key);
  const Place before = std::exchange(found.value(), Place{file, &layout, offset});
  change(file, [](File& changed) { ++changed.images; });
  if (!added) take_away(before);
  return before.file;
}

void ImageDirectory::add_removed(FileIndex file, const ImageLayout& layout, std::uint64_t offset) noexcept {
  change(file, [&](File& changed) { give_back(changed, layout, offset); });
}

void ImageDirectory::take_away(const Place& place) noexcept {
  change(place.file, [&](File& changed) {
    --changed.images;
    give_back(changed, *place.layout, place.offset);
  });
}

void ImageDirectory::give_back(File& file, const ImageLayout& layout, std::uint64_t offset) const noexcept {
  // The header stays: it leads to the image behind it.
  file.removed.push_back({offset + layout.header_bytes(), offset + layout.image_bytes()});
  if (punches_holes_) file.given_back_bytes += layout.image_bytes() - layout.header_bytes();
}

const ImageDirectory::Place* ImageDirectory::find(const ImageKey& key) const {
  const auto found = places_.find(key);
  return found == places_.end() ? nullptr : &found->second;
}

bool ImageDirectory::remove(const ImageKey& key) noexcept {
  const auto found = places_.find(key);
  if (found == places_.end()) return false;
  const Place place = found->second;
  places_.erase(found);
  take_away(place);
  return true;
}

void ImageDirectory::remove(const ImageKey& key, FileIndex file) noexcept {
  const Place* place = find(key);
  if (place && place->file == file) remove(key);
}

void ImageDirectory::disown(const ImageKey& key, FileIndex file) noexcept {
  const Place* place = find(key);
  if (!place || place->file != file) return;
  places_.erase(key);
  change(file, [](File& changed) {
    --changed.images;
    changed.foreign = true;
  });
}

bool ImageDirectory::is_due(const File& file) const noexcept {
  return file.used && file.readers == 0 && !file.tidying &&
         (file.images == 0 || (punches_holes_ && !file.removed.empty()));
}

std::optional<ImageDirectory::Tidy> ImageDirectory::begin_tidy(FileIndex file) noexcept {
  File& due = files_[at(file)];
  if (!is_due(due)) return {};
  due.tidying = true;
  due.being_given_back = due.removed.size();
  Tidy tidy{.file = file, .name = due.name, .unlink = due.images == 0 && !due.foreign};
  if (punches_holes_ && !tidy.unlink) tidy.holes = due.removed;
  return tidy;
}

void ImageDirectory::finish_tidy(const Tidy& tidy) noexcept {
  File& done = files_[at(tidy.file)];
  done.tidying = false;
  done.holed |= !tidy.holes.empty();
  done.removed.erase(done.removed.begin(), done.removed.begin() + static_cast<std::ptrdiff_t>(done.being_given_back));
  if (done.images > 0 || done.readers > 0 || !done.removed.empty()) return;
  done = {};
  free_.push_back(tidy.file);
}

std::vector<ImageDirectory::Holed> ImageDirectory::take_holed() {
  std::vector<Holed> holed;
  holed.reserve(static_cast<std::size_t>(std::ranges::count_if(files_, &File::holed)));
  for (std::size_t i = 0; i < files_.size(); ++i)
    if (std::exchange(files_[i].holed, false)) holed.push_back({static_cast<FileIndex>(i), files_[i].name});
  return holed;
}

void ImageDirectory::put_back(std::span<const Holed> files) noexcept {
  for (const Holed& each : files) files_[at(each.file)].holed |= files_[at(each.file)].name == each.name;
}

std::vector<ImageKey> ImageDirectory::keys() const {
  std::vector<ImageKey> keys;
  keys.reserve(places_.size());
  for (const auto& [key, place] : places_) keys.push_back(key);
  std::ranges::sort(
      keys, {}, [](const ImageKey& key) { return std::tuple(key.tokens, key.prefix.words, key.content, key.group); });
  return keys;
}

void ImageDirectory::check_invariants() const {
  constexpr const char* structure = "ImageDirectory";
  std::vector<std::int32_t> images(files_.size());
  for (const auto& [key, place] : places_) {
    require_invariant(place.file >= 0 && at(place.file) < files_.size() && files_[at(place.file)].used, structure,
                      "an image lies in no file");
    require_invariant(place.layout->holds(key), structure, "an image has another's layout");
    require_invariant(place.offset + place.layout->image_bytes() <= files_[at(place.file)].bytes, structure,
                      "an image ends behind its file");
    ++images[at(place.file)];
  }
  std::uint64_t held_bytes = 0;
  std::size_t unused = 0;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const File& file = files_[i];
    require_invariant(file.images == images[i], structure, "the images of a file are miscounted");
    require_invariant(file.readers >= 0, structure, "a file has less than no readers");
    require_invariant(file.given_back_bytes <= file.bytes, structure, "a file has more holes than bytes");
    require_invariant(file.used || file.images + file.readers == 0, structure, "a free file is in use");
    require_invariant(!is_due(file), structure, "a file waits for nobody");
    held_bytes += file.held_bytes();
    unused += file.used ? 0 : 1;
  }
  require_invariant(unused == free_.size(), structure, "the free files are miscounted");
  require_invariant(held_bytes == held_bytes_, structure, "the bytes are miscounted");
}

}  // namespace stateport
