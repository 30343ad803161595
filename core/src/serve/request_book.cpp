// SPDX-License-Identifier: Apache-2.0
#include "serve/request_book.hpp"

#include <stateport/core/align/align_rules.hpp>

#include "serve/request_options.hpp"

#include <algorithm>
#include <utility>

namespace stateport::detail {
namespace {

std::vector<RequestRecord> make_records(const RequestCacheOptions& options) {
  std::vector<RequestRecord> records;
  records.reserve(index_rows(options));
  while (records.size() < index_rows(options)) records.emplace_back(options);
  return records;
}

}  // namespace

RequestBook::RequestBook(const RequestCacheOptions& given)
    : options(given),
      slots(slot_layout(options)),
      columns(column_layout(options)),
      groups(group_count(options)),
      grid_tokens(state_grid_tokens(options)),
      in_columns(stateport::in_columns(options)),
      news(options.events),
      passes(options),
      records(make_records(options)),
      opened(records.size()),
      fork_links(records.size()),
      asked(records.size()),
      named(records.size()),
      states(records.size(), groups),
      after(groups),
      tails(options),
      ages(static_cast<std::size_t>(checkpoint_slots(options)), stats) {
  for (After& copies : after) {
    copies.from_scratch.reserve(in_columns ? 0 : saves_max(options));
    copies.copies.reserve(records.size());
    copies.steps.reserve(records.size());
  }
  end_copies.reserve(1);
  refused.reserve(records.size() * breakpoints_max);
  stats.cost = options.cost;
  if (options.tenant_quotas > 0) tenants.emplace(options);
  if (options.sessions.remembered > 0) sessions.emplace(options);
  if (options.integrity) checks.emplace(options);
}

void RequestBook::set_breakpoints(RequestId request, std::span<const std::int64_t> positions) noexcept {
  NamedPositions& of_request = asked[request.index()];
  of_request.count = positions.size();
  for (std::size_t i = 0; i < positions.size(); ++i) of_request.at[i] = floor_to(positions[i], grid_tokens);
  named[request.index()] = of_request;
}

bool RequestBook::can_await(RequestId request, std::int64_t position) const noexcept {
  const std::span<const std::int64_t> named_at = named[request.index()].all();
  if (std::ranges::binary_search(named_at, position)) return true;
  const std::span<const std::int64_t> asked_at = asked[request.index()].all();
  const auto is_awaited = [&](std::int64_t at) {
    return at > record(request).computed && !std::ranges::binary_search(asked_at, at);
  };
  return std::cmp_less(std::ranges::count_if(named_at, is_awaited), awaited_max);
}

/// Positions that the request has passed make room.
void RequestBook::await(RequestId request, std::int64_t position) noexcept {
  NamedPositions& of_request = named[request.index()];
  if (std::ranges::binary_search(of_request.all(), position)) return;
  const auto first = of_request.at.begin();
  const auto passed = [&](std::int64_t at) { return at <= record(request).computed; };
  auto end = std::remove_if(first, first + static_cast<std::ptrdiff_t>(of_request.count), passed);
  *end++ = position;
  std::rotate(std::upper_bound(first, end - 1, position), end - 1, end);
  of_request.count = static_cast<std::size_t>(end - first);
}

}  // namespace stateport::detail
