// SPDX-License-Identifier: Apache-2.0
// Images that are damaged or that belong to another model are no hits.
#include <stateport/backends/host_resource.hpp>
#include <stateport/tiers/in_process_store.hpp>

#include "engine.hpp"
#include "image_stores.hpp"
#include "prompts.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>

using namespace stateport;
using namespace stateport::test;

namespace {

/// Serves a prompt of 200 tokens and leaves its images in the folder.
Tokens leave_images(llama_model* model, const Folder& folder) {
  CachedEngine engine(model, {.memory_bytes = 64 << 20, .files = folder.files()});
  const Tokens prompt = random_prompt(model, 200, 1);
  static_cast<void>(engine.serve(prompt));
  engine.cache().drain();
  CHECK(engine.cache().files().states == 3);
  CHECK(engine.cache().files().kv_blocks == 12);
  return prompt;
}

void damage(const Folder& folder, std::uint64_t position_of_16) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (!entry.is_regular_file() || entry.file_size() < 4096) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(entry.file_size() / 16 * position_of_16);
    char byte = 0;
    file.seekg(at).get(byte);
    file.seekp(at).put(static_cast<char>(byte ^ 4));
  }
}

}  // namespace

TEST_CASE("the images of the same model are found") {
  const Model model = load("granitehybrid");
  const Folder folder;
  const Tokens prompt = leave_images(model.get(), folder);
  CachedEngine engine(model.get(), {.memory_bytes = 64 << 20, .files = folder.files()});
  CHECK(engine.serve(prompt).reused == 192);
}

TEST_CASE("images of other weights, types of KV and sizes of blocks are not used") {
  const Model model = load("granitehybrid"), other = load("lfm2");
  const Folder folder;
  const Tokens prompt = leave_images(model.get(), folder);
  const llamacpp::CacheOptions options{.memory_bytes = 64 << 20, .files = folder.files()};
  const auto misses = [&](CachedEngine engine) { CHECK(engine.serve(prompt).reused == 0); };
  misses(CachedEngine(model.get(), options, 2048, "other weights"));
  misses(CachedEngine(other.get(), options));
  llamacpp::CacheOptions blocks = options;
  blocks.block_tokens = 8;
  misses(CachedEngine(model.get(), blocks));
  llama_context_params params = parameters(2048, 2);
  params.type_k = GGML_TYPE_BF16;  // as large as the default's
  const Context context(llama_init_from_model(model.get(), params));
  const llamacpp::Cache cache(context.get(), params, "random weights", options);
  CHECK(cache.files().states == 0);
  CachedEngine same(model.get(), options);
  CHECK(same.serve(prompt).reused == 192);
}

TEST_CASE("processes share states through a store") {
  const Model model = load("granitehybrid");
  const auto objects = std::make_shared<InProcessObjects>(std::uint64_t{64} << 20);
  InProcessStore ours(objects), theirs(objects), others(objects);
  const Tokens shared = random_prompt(model.get(), 150, 1);
  CachedEngine first(model.get(), {.memory_bytes = 64 << 20, .checkpoint_tokens = 64, .store = &ours});
  static_cast<void>(first.serve(joined(shared, random_prompt(model.get(), 50, 2))));
  first.cache().drain();
  CHECK(first.cache().store().states == 3);

  CachedEngine second(model.get(), {.memory_bytes = 64 << 20, .checkpoint_tokens = 64, .store = &theirs});
  PlainEngine plain(model.get());
  const Answer answer = second.serve(joined(shared, random_prompt(model.get(), 40, 3)), 4);
  CHECK(answer.reused == 128);
  CHECK(largest_difference(plain, answer) < rounding);
  CHECK(second.cache().store().loads == 1);
  CachedEngine foreign(model.get(), {.memory_bytes = 64 << 20, .store = &others}, 2048, "other weights");
  CHECK(foreign.serve(answer.prompt).reused == 0);
}

TEST_CASE("damaged files are misses") {
  const Model model = load("granitehybrid");
  for (std::uint64_t position = 1; position < 16; position += 3) {
    CAPTURE(position);
    const Folder folder;
    const Tokens prompt = leave_images(model.get(), folder);
    damage(folder, position);
    CachedEngine engine(model.get(), {.memory_bytes = 64 << 20, .files = folder.files()});
    PlainEngine plain(model.get());
    const Answer answer = engine.serve(prompt);
    CHECK(answer.reused < 192);
    CHECK(largest_difference(plain, answer) < rounding);
  }
}

TEST_CASE("images of KV hold no state, and those of states are all alike") {
  for (const std::string& architecture : architectures()) {
    CAPTURE(architecture);
    const Model model = load(architecture);
    const auto of_block = [&](std::int32_t tokens) {
      CachedEngine engine(model.get(), {.memory_bytes = 64 << 20, .block_tokens = tokens});
      return engine;
    };
    CachedEngine small = of_block(8), large = of_block(32);
    const std::size_t token = (large.cache().kv_block_bytes() - small.cache().kv_block_bytes()) / 24;
    CHECK(small.cache().kv_block_bytes() - 8 * token < 1000);  // headers
    CHECK(small.cache().state_bytes() == large.cache().state_bytes());
  }
}

TEST_CASE("an image in memory that has changed is found") {
  HostResource memory;
  const llamacpp::ImageStore store(memory, 1001, 2, Stream::default_stream());
  for (std::size_t i = 0; i < 1001; ++i) store.image(1)[i] = static_cast<std::byte>(i);
  Tokens prefix(48, 5);
  store.seal(1, prefix);
  store.verify(1, prefix, "a state");
  CHECK_THROWS_WITH_AS(store.verify(1, first(prefix, 47), "a state"),
                       "the image of a state after 47 tokens, in slot 1, is not the one that was saved there",
                       std::runtime_error);
  for (llama_token* const token : {&prefix.front(), &prefix.back()}) {
    ++*token;
    CHECK_THROWS_AS(store.verify(1, prefix, "a state"), std::runtime_error);
    --*token;
  }
  for (const std::size_t at : {std::size_t{0}, std::size_t{500}, std::size_t{1000}}) {
    store.image(1)[at] ^= std::byte{16};
    CHECK_THROWS_AS(store.verify(1, prefix, "a state"), std::runtime_error);
    store.image(1)[at] ^= std::byte{16};
  }
  store.verify(1, prefix, "a state");
}
