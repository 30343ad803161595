// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <set>
#include <string>
#include <string_view>

namespace stateport::conformance {

/// Recorded cases of rules that the reference systems have since changed, and that we have changed with them.
///
/// The list is a JSON file. `rules` explains each change under a letter. `cases` names each case by `file`, `suite`,
/// `case`, and by `recorded`, the fingerprint of the recorded value: the same name in another recording is another
/// case. `now` of the case, or else of its rule, is a JSON merge patch of the case that makes it one of the newer rule:
/// it gives the newer answer, or asks the runner to bring the older state of things about.
class SupersededCases {
 public:
  /// Throws std::runtime_error for a list that names an unknown rule or the same case twice.
  explicit SupersededCases(nlohmann::json list);

  /// The case as the newer rule has it; null if the case is not listed.
  [[nodiscard]] nlohmann::json newer(std::string_view file, std::string_view suite, std::string_view name,
                                     const nlohmann::json& recorded);
  /// The first listed case that newer() was not asked for; empty if there is none.
  [[nodiscard]] std::string first_missing() const;

 private:
  nlohmann::json rules_;
  nlohmann::json cases_;  ///< by file, suite, name and fingerprint
  std::set<std::string> found_;
};

/// 64-bit FNV-1a of the compact text with sorted keys, as 16 hexadecimal digits.
[[nodiscard]] std::string fingerprint(const nlohmann::json& value);

}  // namespace stateport::conformance
