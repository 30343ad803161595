// SPDX-License-Identifier: Apache-2.0
#include "file/section_sums.hpp"

#include <algorithm>

namespace stateport {

void SectionSums::start(const ImageLayout& layout, const std::byte* image) {
  sums_.reserve(layout.spec().tensors().size());
  layout_ = &layout;
  image_ = image;
  summed_bytes_ = 0;
  running_.restart();
  sums_.clear();
}

void SectionSums::advance(std::size_t bytes) noexcept {
  const std::size_t sections = layout_->spec().tensors().size();
  while (sums_.size() < sections) {
    const std::size_t section = sums_.size();
    const std::size_t begin = layout_->section_offset(section);
    const std::size_t end = begin + layout_->section_bytes(section);
    const std::size_t at = begin + summed_bytes_;
    const std::size_t until = std::min(bytes, end);
    if (until > at) {
      running_.add({image_ + at, until - at});
      summed_bytes_ += until - at;
    }
    if (begin + summed_bytes_ < end) return;
    sums_.push_back(running_.finish());
    running_.restart();
    summed_bytes_ = 0;
  }
}

SummingThread::SummingThread() : thread_([this] { run(); }) {}

SummingThread::~SummingThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SummingThread::start(const ImageLayout& layout, const std::byte* image) {
  const std::lock_guard lock(mutex_);
  sums_.start(layout, image);
  ready_bytes_ = summed_bytes_ = 0;
}

void SummingThread::advance(std::size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    ready_bytes_ = bytes;
  }
  changed_.notify_all();
}

std::span<const Checksum> SummingThread::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return summed_bytes_ == ready_bytes_; });
  return sums_.sums();
}

void SummingThread::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || summed_bytes_ != ready_bytes_; });
    if (stopping_) return;
    const std::size_t bytes = ready_bytes_;
    lock.unlock();
    sums_.advance(bytes);
    lock.lock();
    summed_bytes_ = bytes;
    changed_.notify_all();
  }
}

}  // namespace stateport
