// SPDX-License-Identifier: Apache-2.0
#include "file_scripts.hpp"

#include "file_images.hpp"
#include "random_numbers.hpp"

#include <array>
#include <utility>

namespace stateport::test {

FileTierOptions crash_options(const std::string& folder) {
  return {.folder = folder, .capacity_bytes = 1 << 20, .queue_bytes = 1 << 20};
}

std::vector<CrashStep> crash_script() {
  return {{.write = {kv_key(1), kv_key(2), kv_key(3), state_key(3)}},
          {.write = {state_key(4)}},
          {.remove = {kv_key(2), kv_key(3)}},
          {.write = {kv_key(5), state_key(5)}},
          {.remove = {state_key(4)}},
          {.write = {kv_key(2), state_key(4)}}};
}

void carry_out(FileTier& tier, const CrashStep& step) {
  for (const ImageKey& key : step.remove) tier.remove(key);
  if (step.write.empty()) return tier.wait_idle();
  require_true(write_images(tier, small_layouts(), step.write) == TransferStatus::done, "a write fails");
}

namespace {

/// A request whose memory waits for its answer.
struct Pending {
  ImageKey key;
  std::vector<AlignedBytes> memory;
  bool reads = false;
};

class Sharer {
 public:
  Sharer(const FileTierOptions& options, std::uint64_t seed) : tier_(options, layouts_), random_(seed) {}

  [[nodiscard]] bool run(int steps) {
    for (int i = 0; i < steps; ++i) {
      step();
      take_answers();
      tier_.check_invariants();
    }
    tier_.wait_idle();
    take_answers();
    return right_;
  }

 private:
  void step() {
    const auto number = static_cast<std::uint64_t>(random_.between(1, 12));
    const ImageKey key = random_.chance(50) ? state_key(number) : kv_key(number);
    const std::int64_t what = random_.between(0, 9);
    if (what < 4) {
      write(number);
    } else if (what < 8) {
      Pending pending{.key = key, .reads = true};
      pending.memory.emplace_back(layout_of(layouts_, key).image_bytes());
      const std::span<std::byte> image = pending.memory[0].bytes();
      pending_.push_back(std::move(pending));
      if (!tier_.read(pending_.size(), key, image)) pending_.pop_back();
    } else {
      tier_.remove(key);
    }
  }

  void write(std::uint64_t number) {
    Pending pending;
    std::vector<FileImage> images;
    for (const ImageKey& key : {kv_key(number), kv_key(number + 1), state_key(number)}) {
      pending.memory.push_back(image_of(layouts_, key));
      images.push_back({key, pending.memory.back().data()});
    }
    pending_.push_back(std::move(pending));
    if (!tier_.write(pending_.size(), images)) pending_.pop_back();
  }

  void take_answers() {
    std::array<Completion, 16> answers;
    while (const std::size_t count = tier_.poll(answers))
      for (const Completion& answer : std::span(answers).first(count)) check(answer);
  }

  void check(const Completion& answer) {
    Pending& pending = pending_[answer.ticket - 1];
    if (pending.reads && answer.status == TransferStatus::done)
      right_ = right_ && is_image_of(layouts_, pending.key, pending.memory[0].bytes());
    // Half of an image may have been given back by another process while it was read: damaged.
    const bool explained =
        answer.status == TransferStatus::done ||
        (pending.reads && (answer.status == TransferStatus::gone || answer.status == TransferStatus::damaged));
    right_ = right_ && explained;
    pending.memory.clear();
  }

  std::vector<ImageLayout> layouts_ = small_layouts();
  FileTier tier_;
  Random random_;
  std::vector<Pending> pending_;  ///< by id - 1
  bool right_ = true;
};

}  // namespace

bool share_folder(const FileTierOptions& options, std::uint64_t seed) {
  constexpr int steps = 100;
  bool right = true;
  // Each life begins with what all have left.
  for (std::uint64_t life = 0; life < 4; ++life) right = Sharer(options, seed * 4 + life).run(steps) && right;
  return right;
}

}  // namespace stateport::test
