// SPDX-License-Identifier: Apache-2.0
#include "serve/request_book.hpp"

#include <stateport/core/align/align_rules.hpp>

#include "serve/request_options.hpp"

namespace stateport::detail {
namespace {

std::vector<RequestRecord> make_records(const RequestCacheOptions& options) {
  std::vector<RequestRecord> records;
  records.reserve(static_cast<std::size_t>(options.max_requests));
  for (std::int32_t id = 0; id < options.max_requests; ++id) records.emplace_back(options);
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
      asked(records.size()),
      named(records.size()),
      states(records.size(), groups),
      after(groups),
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
}

void RequestBook::set_breakpoints(RequestId request, std::span<const std::int64_t> positions) noexcept {
  NamedPositions& of_request = asked[request.index()];
  of_request.count = positions.size();
  for (std::size_t i = 0; i < positions.size(); ++i) of_request.at[i] = floor_to(positions[i], grid_tokens);
  named[request.index()] = of_request;
}

bool RequestBook::can_add_breakpoint(RequestId request, std::int64_t position) const noexcept {
  const NamedPositions& of_request = named[request.index()];
  return of_request.count < asked[request.index()].count + awaited_max ||
         std::ranges::binary_search(of_request.all(), position);
}

void RequestBook::add_breakpoint(RequestId request, std::int64_t position) noexcept {
  NamedPositions& of_request = named[request.index()];
  if (std::ranges::binary_search(of_request.all(), position)) return;
  std::size_t i = of_request.count++;
  for (; i > 0 && of_request.at[i - 1] > position; --i) of_request.at[i] = of_request.at[i - 1];
  of_request.at[i] = position;
}

}  // namespace stateport::detail
