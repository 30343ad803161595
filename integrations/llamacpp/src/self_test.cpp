// SPDX-License-Identifier: Apache-2.0
#include "self_test.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

namespace stateport::llamacpp {
namespace {

constexpr llama_seq_id sequence = 0;

[[noreturn]] void refuse(const llama_context* context, const std::string& reason) {
  std::array<char, 128> name = {};
  llama_model_desc(llama_get_model(context), name.data(), name.size());
  throw InvalidArgument("context", name.data(), reason);
}

/// Decodes tokens that are some of the vocabulary's, behind `first`, and returns the logits of the last one.
std::vector<float> decode(llama_context* context, std::int64_t first, std::int64_t count) {
  const llama_vocab* vocab = llama_model_get_vocab(llama_get_model(context));
  const std::int32_t words = llama_vocab_n_tokens(vocab);
  llama_batch batch = llama_batch_init(static_cast<std::int32_t>(count), 0, 1);
  for (std::int32_t i = 0; i < count; ++i) {
    const auto at = static_cast<llama_pos>(first + i);
    batch.token[i] = static_cast<llama_token>((7 + 13 * std::int64_t{at}) % words);
    batch.pos[i] = at;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = sequence;
    batch.logits[i] = i + 1 == count;
  }
  batch.n_tokens = static_cast<std::int32_t>(count);
  const std::int32_t answer = llama_decode(context, batch);
  llama_batch_free(batch);
  if (answer != 0) throw BackendError("llama_decode", "answered " + std::to_string(answer) + " in the self-test");
  const float* const logits = llama_get_logits_ith(context, -1);
  if (logits == nullptr) refuse(context, "it gives no logits");
  return {logits, logits + words};
}

/// Empties the context's memory at its end.
class Emptied {
 public:
  explicit Emptied(llama_context* context) : context_(context) {}
  Emptied(const Emptied&) = delete;
  Emptied& operator=(const Emptied&) = delete;
  ~Emptied() { llama_memory_clear(llama_get_memory(context_), true); }

 private:
  llama_context* context_;
};

bool equal(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

ImageSizes test_context(llama_context* context, SequenceImages& images, std::int32_t block_tokens) {
  constexpr std::int64_t blocks = 3;
  require(llama_n_ctx(context) > blocks * block_tokens, "context.n_ctx", llama_n_ctx(context),
          "must be more than three blocks");
  const Emptied emptied(context);
  std::vector<std::size_t> states, kv;
  for (std::int64_t block = 0; block < blocks; ++block) {
    static_cast<void>(decode(context, block * block_tokens, block_tokens));
    states.push_back(images.state_bytes(sequence));
    kv.push_back(images.kv_bytes(sequence, block * block_tokens, block_tokens));
  }
  const ImageSizes sizes{.state = states[0], .kv_block = kv[0]};
  const auto differ = [](const std::vector<std::size_t>& bytes) {
    return std::ranges::any_of(bytes, [&](std::size_t each) { return each != bytes[0]; });
  };
  if (differ(states))
    refuse(context, "its states grow from " + std::to_string(states[0]) + " to " + std::to_string(states.back()) +
                        " bytes: they hold more than a recurrent state");
  if (differ(kv)) refuse(context, "the KV of equal numbers of tokens differs in size");

  std::vector<std::byte> state(sizes.state), other(sizes.state);
  std::vector<std::vector<std::byte>> kept(blocks, std::vector<std::byte>(sizes.kv_block));
  images.save_state(sequence, state);
  for (std::int64_t block = 0; block < blocks; ++block)
    images.save_kv(sequence, block * block_tokens, block_tokens, kept[static_cast<std::size_t>(block)]);
  const std::vector<float> wanted = decode(context, blocks * block_tokens, 1);

  images.cut(sequence, 0);
  for (std::int64_t block = 0; block < blocks; ++block)
    images.load_kv(sequence, block * block_tokens, block_tokens, kept[static_cast<std::size_t>(block)]);
  images.load_state(sequence, state);
  images.save_state(sequence, other);
  if (images.tokens(sequence) != blocks * block_tokens) refuse(context, "a restored sequence has another length");
  if (state != other) refuse(context, "a restored state has other bytes");
  if (!equal(decode(context, blocks * block_tokens, 1), wanted))
    refuse(context, "a restored sequence goes on with other logits");
  return sizes;
}

}  // namespace stateport::llamacpp
