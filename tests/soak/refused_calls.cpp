// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/error.hpp>

#include "engine.hpp"
#include "violation.hpp"

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

namespace stateport::soak {

namespace {

constexpr std::int64_t wrong_calls = 14;

}  // namespace

/// A wrong call is refused and changes nothing: the schedule goes on as if it had not been.
void Engine::refused() {
  try {
    call_wrongly(random_.between(0, wrong_calls - 1));
  } catch (const CallerError&) {
    ++figures_.refused_calls;
    return;
  }
  throw Violation("a wrong call is accepted");
}

void Engine::call_wrongly(std::int64_t which) {
  const RequestId nobody{setup_.options.max_requests + 5};
  const Tokens some(3, 1);
  const std::array<PassRow, 2> rows = {{{.request = nobody, .tokens = 1}, {.request = nobody, .tokens = 1}}};
  const std::array<MediaKey, 2> media = {{{.id = "a", .first_token = 2}, {.id = "b", .first_token = 1}}};
  const std::int32_t count = 1;
  const Token token = 1;
  CacheTiers& tiers = *cache_->tiers();
  const auto refuse_start = [&](const Prompt& prompt) { static_cast<void>(cache_->start(prompt)); };
  switch (which) {
    case 0:
      return refuse_start({.now_s = now_s_ + 1});
    case 1:
      return refuse_start(
          {.tokens = Tokens(static_cast<std::size_t>(setup_.options.max_request_tokens + 1), 1), .now_s = now_s_ + 1});
    case 2:
      return refuse_start({.tokens = some, .now_s = -1});
    case 3:
      return refuse_start({.tokens = some, .media = media, .now_s = now_s_ + 1});
    case 4:
      return refuse_start({.tokens = some, .now_s = std::numeric_limits<double>::quiet_NaN()});
    case 5:
      return static_cast<void>(cache_->chunk(nobody, 1));
    case 6:
      return static_cast<void>(cache_->plan(rows));
    case 7:
      return static_cast<void>(cache_->plan({rows.data(), 1}));
    case 8:
      return static_cast<void>(cache_->commit(std::numeric_limits<PassId>::max(), {&count, 1}, {&token, 1}));
    case 9:
      return cache_->cancel(0);
    case 10:
      return cache_->abort(nobody);
    case 11: {
      const TransferResult unknown{.id = std::numeric_limits<TransferId>::max() / 4};
      return static_cast<void>(tiers.settle({&unknown, 1}));
    }
    case 12:
      return static_cast<void>(tiers.attach(Medium::device, {.tokens = setup_.options.block_size_tokens}));
    default:
      return tiers.set_speeds({.tokens_per_s = -1});
  }
}

}  // namespace stateport::soak
