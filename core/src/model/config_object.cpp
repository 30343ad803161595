// SPDX-License-Identifier: Apache-2.0
#include "model/config_object.hpp"

#include <stateport/core/model/error.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>

namespace stateport::models::detail {
namespace {

using Json = nlohmann::json;
using Kind = ConfigValue::Kind;

constexpr std::size_t shown_bytes_max = 60;
constexpr std::size_t levels_max = 64;  // so that destructors, which call each other, need little stack

/// The same length, so that places in errors are those of the text.
std::string plain_json(std::string_view text) {
  std::string plain(text);
  bool in_string = false;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    if (plain[i] == '"') in_string = !in_string;
    if (in_string && plain[i] == '\\') ++i;
    if (in_string) continue;
    for (const std::string_view number : {"-Infinity", "Infinity"})
      if (plain.compare(i, number.size(), number) == 0)
        plain.replace(i, number.size(), number.size(), ' ').replace(i, 4, "null");
  }
  return plain;
}

[[noreturn]] void refuse_byte(std::size_t byte) {
  stateport::detail::throw_invalid("config", "byte " + std::to_string(byte), "is not JSON there");
}

/// Makes values of the events of a parser.
class ConfigBuilder final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return add(Kind::null, "null"); }
  bool boolean(bool value) override { return add(Kind::scalar, value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return add(Kind::scalar, std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(Kind::natural, std::to_string(value), value); }
  bool number_float(number_float_t, const string_t& text) override { return add(Kind::scalar, text); }
  bool string(string_t& text) override { return add(Kind::text, std::move(text)); }
  bool binary(binary_t&) override { return false; }  // not in a text
  bool start_object(std::size_t) override { return open(Kind::object); }
  bool start_array(std::size_t) override { return open(Kind::list); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    open_.back()->names.push_back(std::move(name));
    return true;
  }
  bool parse_error(std::size_t byte, const std::string&, const Json::exception&) override { refuse_byte(byte); }

  [[nodiscard]] ConfigValue take() noexcept { return std::move(root_.values.front()); }

 private:
  bool add(Kind kind, std::string text, std::uint64_t number = 0) {
    open_.back()->values.push_back(
        {.kind = kind, .text = std::move(text), .number = number, .names = {}, .values = {}});
    return true;
  }
  bool open(Kind kind) {
    require(open_.size() <= levels_max, "config", open_.size(), "must not nest deeper than 64 levels");
    add(kind, kind == Kind::list ? "list" : "object");
    open_.push_back(&open_.back()->values.back());
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  ConfigValue root_;
  /// Values that are not complete, each in the one before it, which therefore gets no other one and stays in its place.
  std::vector<ConfigValue*> open_ = {&root_};
};

}  // namespace

ConfigValue parse_config(std::string_view text) {
  ConfigBuilder builder;
  // The parser would take a zero byte for the end of the text.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) refuse_byte(zero + 1);
  Json::sax_parse(plain_json(text), &builder);
  ConfigValue config = builder.take();
  require(config.kind == Kind::object, "config", config.text, "must be a JSON object");
  return config;
}

bool ConfigObject::says(std::string_view name, std::string_view text) const {
  const ConfigValue* const value = find(name);
  return value != nullptr && value->kind == Kind::text && value->text == text;
}

std::int64_t ConfigObject::number(std::string_view name, std::int64_t least, std::int64_t most) const {
  const ConfigValue* const value = find(name);
  const bool fits = value != nullptr && value->kind == Kind::natural && std::cmp_greater_equal(value->number, least) &&
                    std::cmp_less_equal(value->number, most);
  if (!fits) refuse(name, "must be an integer from " + std::to_string(least) + " to " + std::to_string(most));
  return static_cast<std::int64_t>(value->number);
}

std::int64_t ConfigObject::number_or(std::string_view name, std::int64_t other) const {
  return has(name) ? number(name) : other;
}

std::string_view ConfigObject::text(std::string_view name) const {
  return get(name, Kind::text, "must be a string").text;
}

const std::vector<ConfigValue>& ConfigObject::list(std::string_view name) const {
  return get(name, Kind::list, "must be a list").values;
}

ConfigObject ConfigObject::object(std::string_view name) const {
  return {get(name, Kind::object, "must be an object"), path_ + std::string(name) + "."};
}

std::string_view ConfigObject::first_of(std::initializer_list<std::string_view> names) const {
  const auto* const found = std::ranges::find_if(names, [&](std::string_view name) { return has(name); });
  return found != names.end() ? *found : *names.begin();
}

void ConfigObject::refuse(std::string_view name, std::string_view rule) const {
  const ConfigValue* const value = find(name);
  std::string shown = value == nullptr ? "absent" : value->kind == Kind::text ? '"' + value->text + '"' : value->text;
  if (shown.size() > shown_bytes_max) shown = shown.substr(0, shown_bytes_max) + "...";
  std::ranges::replace_if(
      shown, [](char c) { return c < ' ' || c > '~'; }, '?');
  stateport::detail::throw_invalid(path_ + std::string(name), shown, rule);
}

const ConfigValue* ConfigObject::find(std::string_view name) const {
  for (std::size_t i = object_.names.size(); i-- > 0;)
    if (object_.names[i] == name) return object_.values[i].kind == Kind::null ? nullptr : &object_.values[i];
  return nullptr;
}

const ConfigValue& ConfigObject::get(std::string_view name, Kind kind, std::string_view rule) const {
  const ConfigValue* const value = find(name);
  if (value == nullptr || value->kind != kind) refuse(name, rule);
  return *value;
}

}  // namespace stateport::models::detail
