// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stateport::models::detail {

/// The largest number that a member may have, where it has no limit of its own.
inline constexpr std::int64_t config_number_max = std::int64_t{1} << 20;

/// A value of JSON. Made so that no destructor allocates, as those of nlohmann::json do.
struct ConfigValue {
  enum class Kind : std::uint8_t { null, scalar, natural, text, list, object };

  Kind kind = Kind::null;
  std::string text;                 ///< the characters of a text, another scalar as it was written
  std::uint64_t number = 0;         ///< of a natural number
  std::vector<std::string> names;   ///< of an object's members
  std::vector<ConfigValue> values;  ///< of an object's members, or of a list
};

/// The object in a text of JSON, which may have the numbers Infinity and -Infinity of Python: they become null.
/// Throws InvalidArgument: a text that is not JSON (with the byte), nests deeper than 64 levels, or is no object.
[[nodiscard]] ConfigValue parse_config(std::string_view text);

/// One object of a config. A member that is null counts as absent, and of two with one name the last counts. Each call
/// that wants a member of a type throws InvalidArgument, with the path of the member ("text_config.hidden_size"), for
/// one that is absent or of another type.
class ConfigObject {
 public:
  /// `object` must outlive this. `path`: stands before the names of members; empty, or ends with a dot.
  ConfigObject(const ConfigValue& object, std::string path) : object_(object), path_(std::move(path)) {}

  [[nodiscard]] bool has(std::string_view name) const { return find(name) != nullptr; }
  /// Whether the member is this text.
  [[nodiscard]] bool says(std::string_view name, std::string_view text) const;

  [[nodiscard]] std::int64_t number(std::string_view name, std::int64_t least = 1,
                                    std::int64_t most = config_number_max) const;
  [[nodiscard]] std::int64_t number_or(std::string_view name, std::int64_t other) const;
  [[nodiscard]] std::string_view text(std::string_view name) const;
  [[nodiscard]] const std::vector<ConfigValue>& list(std::string_view name) const;
  [[nodiscard]] ConfigObject object(std::string_view name) const;

  /// The first of these members that is there; the first of all if none is.
  [[nodiscard]] std::string_view first_of(std::initializer_list<std::string_view> names) const;

  /// Throws InvalidArgument with the member, its value and the rule.
  [[noreturn]] void refuse(std::string_view name, std::string_view rule) const;

 private:
  [[nodiscard]] const ConfigValue* find(std::string_view name) const;
  [[nodiscard]] const ConfigValue& get(std::string_view name, ConfigValue::Kind kind, std::string_view rule) const;

  const ConfigValue& object_;
  std::string path_;
};

}  // namespace stateport::models::detail
