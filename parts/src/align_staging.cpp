// SPDX-License-Identifier: Apache-2.0
#include <stateport/parts/align_staging.hpp>

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>

namespace stateport {
namespace {

void validate(const StagedRequest& row, std::span<const std::int32_t> column_of_request) {
  require(row.request.valid() && row.request.index() < column_of_request.size(), "request", row.request,
          "is not a request slot");
  require(column_of_request[row.request.index()] != forgotten_column, "request", row.request,
          "has no remembered column");
  require(row.computed >= 0, "computed", row.computed, "must not be negative");
  require(row.scheduled >= 0, "scheduled", row.scheduled, "must not be negative");
  require(row.scheduled <= INT32_MAX - row.computed, "scheduled", row.scheduled,
          "makes more tokens than 32 bits count");
  require(row.drafts.value_or(0) >= 0, "drafts", row.drafts.value_or(0), "must not be negative");
  require(row.prompt >= 0, "prompt", row.prompt, "must not be negative");
}

}  // namespace

void stage_batch(std::span<const StagedRequest> batch, std::span<const std::int32_t> column_of_request,
                 const AlignStaging& staging) {
  for (const std::size_t room : {staging.computed.size(), staging.scheduled.size(), staging.drafts.size(),
                                 staging.column.size(), staging.prefilling.size()})
    require(room == 0 || room >= batch.size(), "staging", room, "is shorter than the batch");
  for (const StagedRequest& row : batch) validate(row, column_of_request);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const StagedRequest& row = batch[i];
    if (!staging.computed.empty()) staging.computed[i] = row.computed;
    if (!staging.scheduled.empty()) staging.scheduled[i] = row.scheduled;
    if (!staging.drafts.empty()) staging.drafts[i] = row.drafts.value_or(0);
    if (!staging.column.empty()) staging.column[i] = column_of_request[row.request.index()];
    if (!staging.prefilling.empty()) staging.prefilling[i] = row.computed < row.prompt;
  }
}

}  // namespace stateport
