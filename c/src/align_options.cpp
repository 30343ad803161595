// SPDX-License-Identifier: Apache-2.0
#include "align_options.hpp"

#include <stateport/core/model/error.hpp>

#include "arguments.hpp"

#include <string>

namespace stateport::c {
namespace {

RetentionPolicy retention_from_c(std::int64_t tokens) {
  constexpr std::int64_t boundaries_alone = -1;
  require(tokens >= boundaries_alone, "retention_tokens", tokens, "must be an interval, 0 for all or -1 for none");
  if (tokens == 0) return {};
  return {tokens == boundaries_alone ? 0 : tokens};
}

}  // namespace

AlignMode align_mode_from_c(std::int32_t mode, const char* argument) {
  switch (mode) {
    case STATEPORT_ALIGN_MODE_ALIGN:
      return AlignMode::align;
    case STATEPORT_ALIGN_MODE_NONE:
      return AlignMode::none;
    case STATEPORT_ALIGN_MODE_ALL:
      return AlignMode::all;
    default:
      throw InvalidArgument(argument, std::to_string(mode), "is no enumerator");
  }
}

AlignOptions read_align_options(const stateport_align_options* options) {
  const auto given = read_struct<stateport_align_options>(options, "options");
  AlignOptions wanted{.mode = align_mode_from_c(given.mode, "mode"),
                      .drafts = given.drafts,
                      .max_requests = given.max_requests,
                      .groups = {}};
  for (const stateport_align_group& group : read_structs(given.groups, given.group_count, "groups"))
    wanted.groups.push_back({.block_size_tokens = group.block_size_tokens,
                             .blocks = group.blocks,
                             .conv_window = group.conv_window,
                             .retention = retention_from_c(group.retention_tokens)});
  return wanted;
}

}  // namespace stateport::c
