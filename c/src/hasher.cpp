// SPDX-License-Identifier: Apache-2.0
// Chained hashes of token blocks, of a whole prompt and little by little.
#include <stateport/c/hash.h>
#include <stateport/core/hash/block_hasher.hpp>

#include "arguments.hpp"
#include "guard.hpp"
#include "handle_table.hpp"
#include "serve/epoch_names.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace stateport;
using namespace stateport::c;

namespace {

std::string_view text(const void* data, std::size_t bytes, const char* argument) {
  const auto characters = array(static_cast<const char*>(data), bytes, argument);
  return {characters.data(), characters.size()};
}

BlockHasher make_hasher(const stateport_hash_options& options) {
  return BlockHasher({.kind = options.fast != 0 ? BlockHashKind::xxh3_128 : BlockHashKind::sha256,
                      .block_size_tokens = options.block_size_tokens,
                      .seed = options.seed});
}

/// Of the whole request.
std::vector<ExtraKey> request_keys(const stateport_hash_options& options) {
  // A name that is null has no bytes; one of 0 bytes is a name.
  static_cast<void>(text(options.salt, options.salt_bytes, "salt"));
  static_cast<void>(text(options.adapter, options.adapter_bytes, "adapter"));
  Namespace names;
  if (options.salt != nullptr) names.salt = text(options.salt, options.salt_bytes, "salt");
  if (options.adapter != nullptr) names.extra_key = text(options.adapter, options.adapter_bytes, "adapter");
  if (options.epoch != 0) names = stateport::detail::EpochNames(options.epoch).current(names);
  std::vector<ExtraKey> keys;
  if (names.salt) keys.push_back({ExtraKey::Kind::tenant_salt, *names.salt});
  if (names.extra_key) keys.push_back({ExtraKey::Kind::adapter, *names.extra_key});
  return keys;
}

struct HasherObject final : Object {
  static constexpr Kind kind = Kind::hasher;

  explicit HasherObject(const stateport_hash_options& options) : Object(kind), hasher(make_hasher(options)) {
    whole = request_keys(options);
    reset();
  }

  void reset() {
    std::vector<ExtraKey> begun = whole;
    keys = std::move(begun);
    pending.clear();
    parent = {};
    hashed_tokens = 0;
  }

  [[nodiscard]] std::size_t block_size() const { return static_cast<std::size_t>(hasher.options().block_size_tokens); }

  BlockHasher hasher;
  std::vector<ExtraKey> whole;  ///< of every prompt
  /// Of blocks that are not complete; first_token ascends, and counts from the start of the prompt.
  std::vector<ExtraKey> keys;
  std::vector<std::int32_t> pending;
  BlockDigest parent;  ///< of the last complete block
  std::int64_t hashed_tokens = 0;
};

/// The state of hashing at a prompt's end: copied, so that a call that fails has changed nothing.
class Tail {
 public:
  Tail(const HasherObject& of, std::span<const std::int32_t> tokens, std::vector<ExtraKey>&& media)
      : block_size_(of.block_size()),
        tokens_(of.pending),
        keys_(of.keys),
        parent_(of.parent),
        hashed_tokens_(of.hashed_tokens) {
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    std::ranges::move(media, std::back_inserter(keys_));
  }

  [[nodiscard]] std::size_t complete_blocks() const noexcept { return tokens_.size() / block_size_; }

  [[nodiscard]] std::vector<BlockDigest> hash_with(BlockHasher& hasher) {
    std::vector<BlockDigest> digests;
    std::size_t keys_done = 0;
    for (std::size_t block = 0; block < complete_blocks(); ++block) {
      const auto end = hashed_tokens_ + static_cast<std::int64_t>(block_size_);
      std::vector<ExtraKey> of_block;
      for (; keys_done < keys_.size() && keys_[keys_done].first_token < end; ++keys_done) {
        of_block.push_back(keys_[keys_done]);
        of_block.back().first_token -= hashed_tokens_;
      }
      parent_ = hasher.hash_block(parent_, std::span(tokens_).subspan(block * block_size_, block_size_), of_block);
      digests.push_back(parent_);
      hashed_tokens_ = end;
    }
    keys_.erase(keys_.begin(), keys_.begin() + static_cast<std::ptrdiff_t>(keys_done));
    tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(digests.size() * block_size_));
    return digests;
  }

  void move_to(HasherObject& to) noexcept {
    to.pending = std::move(tokens_);
    to.keys = std::move(keys_);
    to.parent = parent_;
    to.hashed_tokens = hashed_tokens_;
  }

 private:
  std::size_t block_size_;
  std::vector<std::int32_t> tokens_;
  std::vector<ExtraKey> keys_;
  BlockDigest parent_;
  std::int64_t hashed_tokens_;
};

using HeldHasher = Held<HasherObject>;

/// Media of the tokens [first, end) of a prompt.
std::vector<ExtraKey> read_media(const stateport_media_key* media, std::size_t count, std::int64_t first,
                                 std::int64_t end) {
  std::vector<ExtraKey> result;
  for (const stateport_media_key& key : read_structs(media, count, "media")) {
    require(key.first_token >= first && key.first_token < end, "first_token", key.first_token,
            "must be a position of the tokens that are appended, ascending");
    result.push_back({ExtraKey::Kind::media, text(key.id, key.id_bytes, "id"), key.first_token});
    first = key.first_token;
  }
  return result;
}

}  // namespace

stateport_status stateport_hash_blocks(const stateport_hash_options* options, const int32_t* tokens, size_t count,
                                       int64_t* keys, uint64_t* prefixes) {
  return guarded([&] {
    const auto given = read_struct<stateport_hash_options>(options, "options");
    BlockHasher hasher = make_hasher(given);
    PromptHashes hashes;
    hasher.hash_prompt(array(tokens, count, "tokens"), request_keys(given), hashes);
    static_cast<void>(array(keys, hashes.keys.size(), "keys"));
    std::ranges::copy(hashes.keys, keys);
    if (prefixes == nullptr) return;
    for (const PrefixHash& prefix : hashes.prefixes) prefixes = std::ranges::copy(prefix.words, prefixes).out;
  });
}

stateport_status stateport_hasher_create(const stateport_hash_options* options, stateport_hasher** out) {
  return guarded([&] {
    create(out,
           [&] { return std::make_shared<HasherObject>(read_struct<stateport_hash_options>(options, "options")); });
  });
}

stateport_status stateport_hasher_destroy(stateport_hasher* hasher) {
  return guarded([&] { destroy<HasherObject>(hasher, "hasher"); });
}

stateport_status stateport_hasher_append(stateport_hasher* hasher, const int32_t* tokens, size_t count,
                                         const stateport_media_key* media, size_t media_count, int64_t* keys,
                                         uint64_t* prefixes, size_t capacity, size_t* blocks) {
  return guarded([&] {
    const HeldHasher held(hasher, "hasher");
    const auto given = array(tokens, count, "tokens");
    std::size_t& done = checked(blocks, "blocks");
    const auto first = held->hashed_tokens + static_cast<std::int64_t>(held->pending.size());
    std::vector<ExtraKey> added = read_media(media, media_count, first, first + static_cast<std::int64_t>(count));
    Tail tail(*held.operator->(), given, std::move(added));
    require(tail.complete_blocks() <= capacity, "capacity", capacity, "is less than the blocks that are complete then");
    static_cast<void>(array(keys, tail.complete_blocks(), "keys"));
    const std::vector<BlockDigest> digests = tail.hash_with(held->hasher);
    for (std::size_t i = 0; i < digests.size(); ++i) {
      keys[i] = digests[i].key();
      if (prefixes != nullptr) std::ranges::copy(digests[i].prefix().words, prefixes + 2 * i);
    }
    done = digests.size();
    tail.move_to(*held.operator->());
  });
}

stateport_status stateport_hasher_reset(stateport_hasher* hasher) {
  return guarded([&] { HeldHasher(hasher, "hasher")->reset(); });
}
