// SPDX-License-Identifier: Apache-2.0
#include "sequence_images.hpp"

#include <stateport/core/model/error.hpp>

#include <string>

namespace stateport::llamacpp {
namespace {

constexpr llama_state_seq_flags state_alone = LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;

void require_bytes(const char* call, std::size_t bytes, std::size_t wanted) {
  if (bytes != wanted)
    throw BackendError(call, "answered " + std::to_string(bytes) + " in place of " + std::to_string(wanted) + " bytes");
}

std::uint8_t* writable(std::span<std::byte> image) {
  return reinterpret_cast<std::uint8_t*>(image.data());
}
const std::uint8_t* readable(std::span<const std::byte> image) {
  return reinterpret_cast<const std::uint8_t*>(image.data());
}
llama_pos position(std::int64_t token) {
  return static_cast<llama_pos>(token);
}

}  // namespace

SequenceImages::SequenceImages(llama_context* context, llama_seq_id scratch)
    : context_(context), memory_(llama_get_memory(context)), scratch_(scratch), empty_state_(empty_state()) {}

std::vector<std::uint8_t> SequenceImages::empty_state() const {
  std::vector<std::uint8_t> image(llama_state_seq_get_size_ext(context_, scratch_, state_alone));
  require_bytes("llama_state_seq_get_data_ext",
                llama_state_seq_get_data_ext(context_, image.data(), image.size(), scratch_, state_alone),
                image.size());
  return image;
}

std::size_t SequenceImages::state_bytes(llama_seq_id sequence) const {
  return llama_state_seq_get_size_ext(context_, sequence, state_alone);
}

/// The scratch sequence gets the cells of these tokens, and gives up the state that it would share with them.
void SequenceImages::share(llama_seq_id sequence, std::int64_t first, std::int64_t count) {
  llama_memory_seq_cp(memory_, sequence, scratch_, position(first), position(first + count));
  drop_state(scratch_);
}

void SequenceImages::drop_state(llama_seq_id sequence) {
  require_bytes("llama_state_seq_set_data_ext",
                llama_state_seq_set_data_ext(context_, empty_state_.data(), empty_state_.size(), sequence, state_alone),
                empty_state_.size());
}

void SequenceImages::release() {
  llama_memory_seq_rm(memory_, scratch_, -1, -1);  // removing a whole sequence never fails
}

std::size_t SequenceImages::kv_bytes(llama_seq_id sequence, std::int64_t first, std::int64_t count) {
  share(sequence, first, count);
  const std::size_t bytes = llama_state_seq_get_size(context_, scratch_);
  release();
  return bytes;
}

void SequenceImages::save_state(llama_seq_id sequence, std::span<std::byte> image) {
  require_bytes("llama_state_seq_get_data_ext",
                llama_state_seq_get_data_ext(context_, writable(image), image.size(), sequence, state_alone),
                image.size());
}

void SequenceImages::save_kv(llama_seq_id sequence, std::int64_t first, std::int64_t count,
                             std::span<std::byte> image) {
  share(sequence, first, count);
  const std::size_t bytes = llama_state_seq_get_data(context_, writable(image), image.size(), scratch_);
  release();
  require_bytes("llama_state_seq_get_data", bytes, image.size());
}

void SequenceImages::load_kv(llama_seq_id sequence, std::int64_t first, std::int64_t count,
                             std::span<const std::byte> image) {
  const std::size_t bytes = llama_state_seq_set_data(context_, readable(image), image.size(), scratch_);
  if (bytes == image.size()) llama_memory_seq_cp(memory_, scratch_, sequence, position(first), position(first + count));
  release();
  require_bytes("llama_state_seq_set_data", bytes, image.size());
}

void SequenceImages::load_state(llama_seq_id sequence, std::span<const std::byte> image) {
  require_bytes("llama_state_seq_set_data_ext",
                llama_state_seq_set_data_ext(context_, readable(image), image.size(), sequence, state_alone),
                image.size());
}

void SequenceImages::cut(llama_seq_id sequence, std::int64_t tokens) {
  // A state cannot go back, and llama.cpp removes no KV behind which there is one.
  if (tokens > 0) drop_state(sequence);
  if (!llama_memory_seq_rm(memory_, sequence, tokens == 0 ? -1 : position(tokens), -1))
    throw BackendError("llama_memory_seq_rm", "refused to remove the end of a sequence");
}

std::int64_t SequenceImages::tokens(llama_seq_id sequence) const {
  return llama_memory_seq_pos_max(memory_, sequence) + 1;
}

}  // namespace stateport::llamacpp
