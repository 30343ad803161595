// SPDX-License-Identifier: Apache-2.0
#include "random_engine.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <span>

namespace stateport::test {

void RandomEngine::Prefixes::step() {
  if (cache_.prefixes() == nullptr) return;
  const PrefixOptions& options = engine_.options_.prefixes;
  if (options.pins > 0 && random_.chance(12)) pin();
  if (!pins_.empty() && random_.chance(6)) unpin(static_cast<std::size_t>(random_.between(0, std::ssize(pins_) - 1)));
  if (options.prefetches > 0 && random_.chance(15) && engine_.may_begin()) prefetch();
  if (!pins_.empty() && random_.chance(15)) hit_pinned();
  check();
}

void RandomEngine::Prefixes::end_leases() {
  std::erase_if(pins_, [&](const Pinned& pin) { return pin.ends_s > 0 && pin.ends_s <= engine_.now_s_; });
}

bool RandomEngine::Prefixes::forget() {
  std::erase_if(pins_, [&](const Pinned& pin) {
    const bool is_over = pin.prefix.names.weights != engine_.weights_of(pin.prefix.names.tenant);
    if (is_over) REQUIRE_FALSE(cache_.prefixes()->unpin(pin.pin));
    return is_over;
  });
  return !prefetches_.empty();
}

void RandomEngine::Prefixes::withdraw(const Tokens& tokens) {
  std::erase_if(pins_, [&](const Pinned& pin) {
    const Tokens prefix(pin.prefix.tokens.begin(), pin.prefix.tokens.begin() + pin.tokens);
    const bool is_over = seen(pin.prefix.names, 0, prefix) == tokens;
    // A pin of another state with the same tokens stays: an index by tokens has one for each media, and an index by
    // hash may have replaced the one that is pinned.
    if (is_over) static_cast<void>(cache_.prefixes()->unpin(pin.pin));
    return is_over;
  });
}

void RandomEngine::Prefixes::end_most() {
  while (!pins_.empty() && random_.chance(80)) unpin(0);
}

bool RandomEngine::Prefixes::finish() {
  follow();
  CHECK(prefetches_.empty());
  return !pins_.empty();
}

void RandomEngine::Prefixes::clear() {
  pins_.clear();
  check();
}

/// Another prefix with the same key may have taken the place of this one in an index by hash.
bool RandomEngine::Prefixes::has_twin(const Tokens& tokens) const {
  const auto begins = [&](const auto& key) {
    return tokens.size() > key.size() && std::ranges::equal(key, std::span(tokens).first(key.size()));
  };
  return engine_.options_.index == CacheIndex::hash && std::ranges::any_of(one_key, begins);
}

/// At a later time than all prompts before. Valid until the next call.
Prompt RandomEngine::Prefixes::prompt_of(const Old& wanted) {
  const Names& names = wanted.names;
  Namespace tenant;
  if (names.tenant == 1) tenant.salt = salted();
  if (names.tenant == 2) tenant.extra_key = "two";
  media_ = {MediaKey{.id = "image", .first_token = names.media_at},
            MediaKey{.id = "its sound", .first_token = names.media_at}};
  return {.tokens = wanted.tokens,
          .name_space = tenant,
          .media = std::span(media_).first(names.media_at >= 0 ? 2 : 0),
          .now_s = engine_.now_s_ += 1};
}

/// Pins some prefix, most often one that is cached.
void RandomEngine::Prefixes::pin() {
  Old wanted = engine_.random_prompt();
  wanted.names.weights = engine_.weights_of(wanted.names.tenant);
  const double lease_s = random_.chance(40) ? static_cast<double>(random_.between(1, 30)) : 0;
  const PrefixUsage before = cache_.prefixes()->usage();
  const PinnedPrefix pinned = cache_.prefixes()->pin(prompt_of(wanted), lease_s);
  end_leases();
  REQUIRE((pinned.tokens >= 0 && pinned.tokens <= std::ssize(wanted.tokens)));
  REQUIRE((pinned.pin > 0) == (pinned.tokens > 0 && !pinned.refused));
  REQUIRE(cache_.prefixes()->usage().made_pins == before.made_pins + (pinned.pin > 0));
  if (pinned.pin == 0) return engine_.begin_rest();
  REQUIRE((pins_.empty() || pinned.pin > pins_.back().pin));
  // Prompts with media share nothing with an index by tokens unless they have the same: keep them.
  wanted.tokens.resize(
      static_cast<std::size_t>(wanted.names.media_at >= pinned.tokens ? std::ssize(wanted.tokens) : pinned.tokens));
  pins_.push_back({.pin = pinned.pin, .prefix = wanted, .ends_s = lease_s > 0 ? engine_.now_s_ + lease_s : 0});
  pins_.back().tokens = pinned.tokens;
  ++engine_.pins;
  engine_.begin_rest();  // a check of the stored states may end the pin
}

void RandomEngine::Prefixes::unpin(std::size_t at) {
  REQUIRE(cache_.prefixes()->unpin(pins_[at].pin));
  REQUIRE_FALSE(cache_.prefixes()->unpin(pins_[at].pin));
  pins_.erase(pins_.begin() + static_cast<std::ptrdiff_t>(at));
  engine_.begin_rest();
}

/// A prompt that continues a pinned prefix starts from there or from a later state, whatever was evicted.
void RandomEngine::Prefixes::hit_pinned() {
  if (engine_.options_.tiers.enabled() && !engine_.may_begin()) return;
  const Pinned pin = pins_[static_cast<std::size_t>(random_.between(0, std::ssize(pins_) - 1))];
  Old wanted = pin.prefix;
  wanted.tokens.push_back(5);
  const auto started = engine_.start(wanted, PromptSearch::device, {});
  if (!started) return;
  const bool is_over = std::ranges::find(pins_, pin.pin, &Pinned::pin) == pins_.end();
  // The live slot of the request may be the only one that could be freed.
  const bool no_live_slot = started->lost == LostHit::locked_pool && engine_.options_.index == CacheIndex::tree &&
                            !in_columns(engine_.options_) && !has_separate_checkpoints(engine_.options_);
  REQUIRE((started->reused_tokens >= pin.tokens || is_over || no_live_slot || has_twin(wanted.tokens)));
  engine_.pin_hits += !is_over && !no_live_slot;
  engine_.running_[started->request] = {.tokens = wanted.tokens,
                                        .names = wanted.names,
                                        .read_back = wanted.tokens.size(),
                                        .prompt = std::ssize(wanted.tokens),
                                        .loading_tokens = std::nullopt,
                                        .reused_tokens = started->reused_tokens,
                                        .named = {}};
  if (started->reused_tokens > 0) engine_.check_places(started->request);
}

void RandomEngine::Prefixes::prefetch() {
  Old wanted = engine_.random_prompt();
  wanted.names.weights = engine_.weights_of(wanted.names.tenant);
  Prompt prompt = prompt_of(wanted);
  prompt.search = random_.chance(30) ? PromptSearch::known : PromptSearch::everywhere;
  const Prefetch started = cache_.prefixes()->prefetch(prompt);
  end_leases();
  for (const Transfer& transfer : started.transfers)
    if (transfer.kind == Transfer::Kind::load || transfer.kind == Transfer::Kind::find)
      engine_.tenants_.try_emplace(transfer.request, wanted.names.salted());
  engine_.begin(started.transfers);
  REQUIRE((started.prefetch > 0) == started.load.has_value());
  if (started.prefetch == 0) return;
  if (prompt.search == PromptSearch::known) REQUIRE(started.load->tokens > started.cached_tokens);
  REQUIRE(cache_.prefixes()->is_prefetching(started.prefetch));
  prefetches_.push_back({started.prefetch, wanted, started.cached_tokens});
}

/// Prefetches end when nothing of them is under way any more.
void RandomEngine::Prefixes::follow() {
  for (std::size_t i = prefetches_.size(); i-- > 0;) {
    if (cache_.prefixes()->is_prefetching(prefetches_[i].prefetch)) continue;
    ++engine_.prefetches;
    prefetches_.erase(prefetches_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (cache_.prefixes() != nullptr) engine_.prefetched = cache_.prefixes()->usage().prefetched_tokens;
}

void RandomEngine::Prefixes::check() const {
  if (cache_.prefixes() == nullptr) return;
  const PrefixUsage& usage = cache_.prefixes()->usage();
  REQUIRE(usage.pins == std::ssize(pins_));
  REQUIRE(usage.pinned_bytes <= engine_.options_.prefixes.pinned_bytes);
  REQUIRE(usage.prefetches == std::ssize(prefetches_));
}

}  // namespace stateport::test
