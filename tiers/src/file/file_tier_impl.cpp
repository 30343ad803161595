// SPDX-License-Identifier: Apache-2.0
#include "file/file_tier_impl.hpp"

#include <stateport/core/model/error.hpp>

#include "file/image_scan.hpp"

#include <errno.h>
#include <string.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <system_error>
#include <utility>

namespace stateport {
namespace {

constexpr std::int32_t lanes_max = 64;

void validate(const FileTierOptions& options, std::span<const ImageLayout> layouts) {
  require(!options.folder.empty(), "folder", options.folder, "must name a folder");
  require(options.folder.find('\0') == std::string::npos, "folder", options.folder.size(), "holds a null character");
  require(options.lanes >= 1 && options.lanes <= lanes_max, "lanes", options.lanes, "must lie in [1, 64]");
  require(!layouts.empty(), "layouts.size()", layouts.size(), "a tier holds images of at least one layout");
  for (const ImageLayout& layout : layouts) {
    require(options.capacity_bytes >= layout.image_bytes(), "capacity_bytes", options.capacity_bytes,
            "is less than an image");
    require(options.queue_bytes >= layout.image_bytes(), "queue_bytes", options.queue_bytes, "is less than an image");
    const auto same = [&layout](const ImageLayout& other) {
      return other.options().content == layout.options().content && other.options().group == layout.options().group;
    };
    require(std::ranges::count_if(layouts, same) == 1, "layouts", layout.options().group,
            "two are for this group and one content");
  }
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

template <class Call>
TransferStatus failed_without_memory(Call&& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return TransferStatus::failed;
  }
}

std::size_t index(TransferStatus status) {
  return static_cast<std::size_t>(status);
}

}  // namespace

FileTier::Impl::Impl(const FileTierOptions& options, std::vector<ImageLayout> layouts, FileCalls& calls)
    : options_((validate(options, layouts), options)),
      layouts_(std::move(layouts)),
      folder_(calls, options_.folder, options_.scrub),
      directory_(folder_.punches_holes()) {
  open_folder();
  try {
    start_lanes();
  } catch (const std::system_error& error) {
    stop_lanes();
    throw BackendError("start of a thread", error.what());
  } catch (...) {
    stop_lanes();
    throw;
  }
}

FileTier::Impl::~Impl() {
  stop_lanes();
}

void FileTier::Impl::start_lanes() {
  for (std::int32_t i = 0; i < options_.lanes; ++i) ios_.push_back(std::make_unique<ImageIo>(folder_, stopping_));
  lanes_.reserve(ios_.size());
  for (const std::unique_ptr<ImageIo>& io : ios_) lanes_.emplace_back([this, &io] { run_lane(*io); });
}

void FileTier::Impl::stop_lanes() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    // Files that waited for readers that do not come are removed now.
    for (const Read& read : reads_) {
      directory_.drop_reader(read.file);
      tidy_if_due(read.file);
    }
    reads_.clear();
  }
  changed_.notify_all();
  for (std::thread& lane : lanes_) lane.join();
}

void FileTier::Impl::open_folder() {
  const ImageFolder::Contents contents = folder_.list();
  findings_.foreign_files = contents.foreign_files;
  findings_.dropped_temporaries = folder_.drop_dead(contents);
  for (FoundFile& found : scan_files(folder_, contents.image_files, layouts_)) {
    findings_.unreadable_files += found.readable ? 0 : 1;
    findings_.damaged_files += found.damaged ? 1 : 0;
    findings_.foreign_images += found.foreign_images;
    if (!found.readable) continue;
    directory_.reserve(1, found.images.size());
    tidies_.prepare(directory_.files() + 1);
    const FileIndex file = directory_.add_file({std::move(found.name), found.images.size()}, found.bytes,
                                               found.hole_bytes, found.foreign_images > 0);
    for (const FoundImage& image : found.images) add_image(file, image.key, *image.layout, image.offset);
    tidy_if_due(file);
  }
  findings_.images = directory_.images();
}

const ImageLayout& FileTier::Impl::layout_of(const ImageKey& key) const {
  const auto found = std::ranges::find_if(layouts_, [&key](const ImageLayout& layout) { return layout.holds(key); });
  require(found != layouts_.end(), "key.group", key.group, "no layout of the tier holds such keys");
  require(key.tokens >= 0, "key.tokens", key.tokens, "must not be negative");
  return *found;
}

bool FileTier::Impl::write(std::uint64_t ticket, std::span<const FileImage> images) {
  require(!images.empty(), "images.size()", images.size(), "must not be empty");
  Write write{.ticket = ticket};
  for (const FileImage& image : images) {
    const ImageLayout& layout = layout_of(image.key);
    require(image.image != nullptr, "images.image", 0, "must not be null");
    write.images.push_back({image.key, &layout, image.image});
  }
  write.removed.resize(write.images.size());
  std::list<Write> accepted(1);
  const std::lock_guard lock(mutex_);
  reserve_answer();
  // Some that it holds are written again with the others: one of them may be found damaged before these are there.
  if (std::ranges::all_of(write.images,
                          [this](const ImageToWrite& image) { return directory_.find(image.key) != nullptr; })) {
    ++statistics_.write_answers[index(TransferStatus::done)];
    answer({.ticket = ticket});
    return true;
  }
  for (const ImageToWrite& image : write.images) write.bytes += image.layout->image_bytes();
  const std::uint64_t queued = statistics_.write_queue_bytes;
  if (write.bytes > options_.queue_bytes - queued ||
      directory_.held_bytes() + queued + write.bytes > options_.capacity_bytes) {
    ++statistics_.refused_writes;
    return false;
  }
  write.file = {folder_.image_name(next_number_), write.images.size()};
  directory_.reserve(writes_.size() + 1, images_to_write_ + write.images.size());
  tidies_.prepare(directory_.files() + writes_.size() + 1);
  images_to_write_ += write.images.size();
  statistics_.write_queue_bytes += write.bytes;
  write.number = next_number_++;
  accepted.front() = std::move(write);
  writes_.splice(writes_.end(), accepted);
  if (next_write_ == writes_.end()) --next_write_;
  changed_.notify_all();
  return true;
}

bool FileTier::Impl::read(std::uint64_t ticket, const ImageKey& key, std::span<std::byte> image) {
  const ImageLayout& layout = layout_of(key);
  require(image.size() == layout.image_bytes(), "image.size()", image.size(), "must be image_bytes() of the layout");
  const std::lock_guard lock(mutex_);
  reserve_answer();
  const ImageDirectory::Place* place = directory_.find(key);
  if (place && image.size() > options_.queue_bytes - statistics_.read_queue_bytes) {
    ++statistics_.refused_reads;
    return false;
  }
  if (!place) {
    ++statistics_.read_answers[index(TransferStatus::gone)];
    answer({.ticket = ticket, .status = TransferStatus::gone});
    return true;
  }
  std::list<Read> accepted;
  accepted.push_back({.ticket = ticket,
                      .source = {key, &layout, directory_.name(place->file), place->offset},
                      .file = place->file,
                      .image = image.data()});
  statistics_.read_queue_bytes += image.size();
  directory_.add_reader(place->file);
  reads_.splice(reads_.end(), accepted);
  changed_.notify_all();
  return true;
}

bool FileTier::Impl::remove(const ImageKey& key) {
  const std::lock_guard lock(mutex_);
  bool found = false;
  if (const ImageDirectory::Place* place = directory_.find(key)) {
    const FileIndex file = place->file;
    found = directory_.remove(key);
    tidy_if_due(file);
  }
  for (Write& write : writes_)
    for (std::size_t i = 0; i < write.images.size(); ++i)
      if (write.images[i].key == key && !write.removed[i]) found = write.removed[i] = true;
  statistics_.removed_images += found ? 1 : 0;
  return found;
}

std::size_t FileTier::Impl::lookup(std::span<const ImageKey> keys, std::span<bool> held) const {
  require(keys.size() == held.size(), "held.size()", held.size(), "must be that of the keys");
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < keys.size(); ++i) held[i] = directory_.find(keys[i]) != nullptr;
  return static_cast<std::size_t>(std::ranges::count(held, true));
}

std::vector<ImageKey> FileTier::Impl::keys() const {
  const std::lock_guard lock(mutex_);
  return directory_.keys();
}

std::size_t FileTier::Impl::poll(std::span<Completion> completions) {
  const std::lock_guard lock(mutex_);
  return completions_.hand_out(completions);
}

/// Removals need not survive a crash one by one, so all of them are synchronised together. Another caller waits for
/// that too: its removals may be among them.
void FileTier::Impl::wait_idle() {
  const std::scoped_lock one_caller(synchronising_);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return idle(); });
  const std::vector<ImageDirectory::Holed> holed = directory_.take_holed();
  const bool has_unlinked = std::exchange(has_unlinked_, false);
  lock.unlock();
  int error = has_unlinked && folder_.calls().synchronize_folder(folder_.file()) != 0 ? errno : 0;
  for (const ImageDirectory::Holed& each : holed)
    if (folder_.synchronize_holes(*each.name) != 0) error = errno;
  if (error == 0) return;
  lock.lock();
  directory_.put_back(holed);
  has_unlinked_ |= has_unlinked;
  throw BackendError("synchronisation of removed images in " + options_.folder, ::strerror(error));
}

bool FileTier::Impl::idle() const {
  return writes_.empty() && reads_.empty() && tidies_.size() == 0 && busy_lanes_ == 0;
}

FileTierStatistics FileTier::Impl::statistics() const {
  const std::lock_guard lock(mutex_);
  FileTierStatistics statistics = statistics_;
  statistics.images = directory_.images();
  statistics.held_bytes = directory_.held_bytes() + statistics_.write_queue_bytes;
  statistics.unscrubbed = folder_.unscrubbed();
  return statistics;
}

void FileTier::Impl::check_invariants() const {
  const std::lock_guard lock(mutex_);
  directory_.check_invariants();
  std::uint64_t write_bytes = 0;
  for (const Write& write : writes_) write_bytes += write.bytes;
  require_invariant(write_bytes == statistics_.write_queue_bytes, "FileTier", "the bytes to write are miscounted");
  std::uint64_t read_bytes = 0;
  for (const Read& read : reads_) read_bytes += read.source.layout->image_bytes();
  require_invariant(read_bytes <= statistics_.read_queue_bytes, "FileTier", "the bytes to read are miscounted");
  require_invariant(busy_lanes_ > 0 || read_bytes == statistics_.read_queue_bytes, "FileTier",
                    "the bytes to read are miscounted");
}

void FileTier::Impl::reserve_answer() {
  // Each lane may have a read.
  completions_.prepare(completions_.size() + writes_.size() + reads_.size() + lanes_.size() + 1);
}

void FileTier::Impl::answer(const Completion& completion) noexcept {
  completions_.push(completion);
}

void FileTier::Impl::tidy_if_due(FileIndex file) noexcept {
  const std::optional<Tidy> tidy = directory_.begin_tidy(file);
  if (!tidy) return;
  tidies_.push(*tidy);
  changed_.notify_all();
}

void FileTier::Impl::run_lane(ImageIo& io) {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(
        lock, [this] { return stopping_ || !reads_.empty() || tidies_.size() > 0 || next_write_ != writes_.end(); });
    // Reads first, because requests wait for them. Removals make room for writes.
    ++busy_lanes_;
    if (!reads_.empty()) {
      const Read read = std::move(reads_.front());
      reads_.pop_front();
      carry_out(io, read, lock);
    } else if (tidies_.size() > 0) {
      Tidy tidy;
      tidies_.hand_out({&tidy, 1});
      carry_out(io, tidy, lock);
    } else if (!stopping_) {
      carry_out(io, next_write_++, lock);
    } else {
      --busy_lanes_;
      return;
    }
    --busy_lanes_;
    changed_.notify_all();
  }
}

void FileTier::Impl::carry_out(ImageIo& io, std::list<Write>::iterator write, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  const auto begin = std::chrono::steady_clock::now();
  const TransferStatus status =
      failed_without_memory([&] { return io.write(write->number, write->images, options_.free_floor_bytes); });
  const double seconds = seconds_since(begin);
  lock.lock();
  const bool done = status == TransferStatus::done;
  statistics_.write_queue_bytes -= write->bytes;
  images_to_write_ -= write->images.size();
  if (done) publish(*write);
  if (done || !stopping_) {
    ++statistics_.write_answers[index(status)];
    statistics_.written_images += done ? write->images.size() : 0;
    statistics_.written_bytes += done ? write->bytes : 0;
    statistics_.write_seconds += done ? seconds : 0;
    answer({.ticket = write->ticket, .status = status, .bytes = done ? write->bytes : 0});
  }
  writes_.erase(write);
}

void FileTier::Impl::add_image(FileIndex file, const ImageKey& key, const ImageLayout& layout,
                               std::uint64_t offset) noexcept {
  const FileIndex before = directory_.add_image(file, key, layout, offset);
  if (before >= 0 && before != file) tidy_if_due(before);
}

void FileTier::Impl::publish(Write& write) noexcept {
  const FileIndex file = directory_.add_file(std::move(write.file), write.bytes, 0, false);
  std::uint64_t offset = 0;
  for (std::size_t i = 0; i < write.images.size(); ++i) {
    const ImageToWrite& image = write.images[i];
    if (write.removed[i])
      directory_.add_removed(file, *image.layout, offset);
    else
      add_image(file, image.key, *image.layout, offset);
    offset += image.layout->image_bytes();
  }
  tidy_if_due(file);
}

void FileTier::Impl::carry_out(ImageIo& io, const Read& read, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  const auto begin = std::chrono::steady_clock::now();
  const TransferStatus status = failed_without_memory([&] { return io.read(read.source, read.image); });
  const double seconds = seconds_since(begin);
  lock.lock();
  const std::uint64_t bytes = status == TransferStatus::done ? read.source.layout->image_bytes() : 0;
  statistics_.read_queue_bytes -= read.source.layout->image_bytes();
  directory_.drop_reader(read.file);
  forget(read, status);
  tidy_if_due(read.file);
  if (stopping_ && status == TransferStatus::failed) return;
  ++statistics_.read_answers[index(status)];
  statistics_.read_images += bytes > 0 ? 1 : 0;
  statistics_.read_bytes += bytes;
  statistics_.read_seconds += bytes > 0 ? seconds : 0;
  answer({.ticket = read.ticket, .status = status, .bytes = bytes});
}

void FileTier::Impl::forget(const Read& read, TransferStatus status) {
  switch (status) {
    case TransferStatus::gone:
    case TransferStatus::damaged:
      directory_.remove(read.source.key, read.file);
      break;
    case TransferStatus::foreign_layout:
    case TransferStatus::wrong_position:
      // Somebody put another file in its place.
      directory_.disown(read.source.key, read.file);
      break;
    case TransferStatus::done:
    case TransferStatus::no_room:
    case TransferStatus::failed:
      break;
  }
}

void FileTier::Impl::carry_out(ImageIo& io, const Tidy& tidy, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  if (tidy.unlink)
    folder_.remove(*tidy.name);
  else
    io.punch(*tidy.name, tidy.holes);
  lock.lock();
  has_unlinked_ |= tidy.unlink;
  directory_.finish_tidy(tidy);
  tidy_if_due(tidy.file);
}

}  // namespace stateport
