// SPDX-License-Identifier: Apache-2.0
#include "superseded.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <stdexcept>

namespace stateport::conformance {
namespace {

using Json = nlohmann::json;

std::string key_of(std::string_view file, std::string_view suite, std::string_view name, std::string_view recorded) {
  return fmt::format("{}: {}: {} ({})", file, suite, name, recorded);
}

}  // namespace

std::string fingerprint(const Json& value) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const char c : value.dump()) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  return fmt::format("{:016x}", hash);
}

SupersededCases::SupersededCases(Json list) : rules_(std::move(list.at("rules"))), cases_(Json::object()) {
  for (Json& row : list.at("cases")) {
    const auto text = [&](const char* key) { return row.at(key).get<std::string>(); };
    const std::string key = key_of(text("file"), text("suite"), text("case"), text("recorded"));
    if (!rules_.contains(text("rule"))) throw std::runtime_error(key + ": unknown rule " + text("rule"));
    if (cases_.contains(key)) throw std::runtime_error(key + ": listed twice");
    cases_[key] = std::move(row);
  }
}

Json SupersededCases::newer(std::string_view file, std::string_view suite, std::string_view name,
                            const Json& recorded) {
  const std::string key = key_of(file, suite, name, fingerprint(recorded));
  const auto found = cases_.find(key);
  if (found == cases_.end()) return nullptr;
  found_.insert(key);
  const Json& rule = rules_.at(found->at("rule").get<std::string>());
  Json row = recorded;
  row.merge_patch(found->contains("now") ? found->at("now") : rule.at("now"));
  return row;
}

std::string SupersededCases::first_missing() const {
  for (const auto& [key, row] : cases_.items())
    if (!found_.contains(key)) return key;
  return {};
}

}  // namespace stateport::conformance
