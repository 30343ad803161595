// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/c/request_types.h>
#include <stateport/core/serve/request_types.hpp>

#include "arguments.hpp"
#include "eviction.hpp"
#include "prefix_tree.hpp"

#include <string_view>
#include <vector>

namespace stateport::c {

/// A prompt of C as C++ wants it.
class ReadPrompt {
 public:
  explicit ReadPrompt(const stateport_prompt& given)
      : prompt_{.tokens = array(given.tokens, given.count, "tokens"),
                .name_space = from_c(given.name_space),
                .media = {},
                .hint = read_hint(given.hint, "hint"),
                .now_s = given.now_s,
                .search = enumerator(given.search, PromptSearch::device, "search"),
                .breakpoints = array(given.breakpoints, given.breakpoint_count, "breakpoints")} {
    for (const stateport_media_key& key : read_structs(given.media, given.media_count, "media")) {
      const auto id = array(static_cast<const char*>(key.id), key.id_bytes, "id");
      media_.push_back({std::string_view(id.data(), id.size()), key.first_token});
    }
  }

  /// Valid as long as this.
  [[nodiscard]] Prompt prompt() const {
    Prompt result = prompt_;
    result.media = media_;
    return result;
  }

 private:
  std::vector<MediaKey> media_;
  Prompt prompt_;
};

}  // namespace stateport::c
