// SPDX-License-Identifier: Apache-2.0
#include "workload/date_time.hpp"

#include <chrono>
#include <cstddef>

namespace stateport::replay {
namespace {

/// Takes a text from its front. Once something did not fit, nothing does.
class TextCursor {
 public:
  explicit TextCursor(std::string_view text) noexcept : text_(text) {}

  /// That many digits.
  int digits(std::size_t count) noexcept {
    int number = 0;
    fits_ = fits_ && text_.size() >= count;
    for (std::size_t i = 0; fits_ && i < count; ++i) {
      fits_ = is_digit(text_[i]);
      number = 10 * number + (text_[i] - '0');
    }
    if (fits_) text_.remove_prefix(count);
    return fits_ ? number : 0;
  }
  /// One of these characters.
  void require(std::string_view any) noexcept { fits_ = take(any) != '\0'; }
  /// The next character if it is one of these, else 0.
  char take(std::string_view any) noexcept {
    if (!fits_ || text_.empty() || any.find(text_.front()) == std::string_view::npos) return '\0';
    const char taken = text_.front();
    text_.remove_prefix(1);
    return taken;
  }
  /// The digits that follow as a fraction of a second.
  int fraction_ms() noexcept {
    fits_ = fits_ && !text_.empty() && is_digit(text_.front());
    int ms = 0;
    for (int digit_ms = 100; fits_ && !text_.empty() && is_digit(text_.front()); digit_ms /= 10) {
      ms += digit_ms * (text_.front() - '0');
      text_.remove_prefix(1);
    }
    return ms;
  }
  [[nodiscard]] bool at_digit() const noexcept { return !text_.empty() && is_digit(text_.front()); }
  /// Whether everything fitted and nothing is left.
  [[nodiscard]] bool finished() const noexcept { return fits_ && text_.empty(); }

 private:
  static bool is_digit(char character) noexcept { return character >= '0' && character <= '9'; }

  std::string_view text_;
  bool fits_ = true;
};

/// Reads the text after the time of day: minutes that local time is ahead of UTC.
std::chrono::minutes offset_from_utc(TextCursor& cursor, bool& valid) noexcept {
  const char sign = cursor.take("Z+-");
  if (sign == '\0' || sign == 'Z') return std::chrono::minutes(0);
  const int hours = cursor.digits(2);
  int minutes = 0;
  if (cursor.take(":") != '\0' || cursor.at_digit()) minutes = cursor.digits(2);
  valid = valid && hours < 24 && minutes < 60;
  const std::chrono::minutes ahead = std::chrono::hours(hours) + std::chrono::minutes(minutes);
  return sign == '-' ? -ahead : ahead;
}

}  // namespace

std::optional<std::int64_t> parse_date_time(std::string_view text) noexcept {
  using namespace std::chrono;
  TextCursor cursor(text);
  const year year_number(cursor.digits(4));
  cursor.require("-");
  const month month_number(static_cast<unsigned>(cursor.digits(2)));
  cursor.require("-");
  const year_month_day date(year_number, month_number, day(static_cast<unsigned>(cursor.digits(2))));
  cursor.require(" T");
  const int hour = cursor.digits(2);
  cursor.require(":");
  const int minute = cursor.digits(2);
  cursor.require(":");
  const int second = cursor.digits(2);
  const int fraction_ms = cursor.take(".") != '\0' ? cursor.fraction_ms() : 0;
  bool valid = hour < 24 && minute < 60 && second < 60;
  const minutes ahead = offset_from_utc(cursor, valid);
  if (!cursor.finished() || !valid || !date.ok()) return std::nullopt;
  const milliseconds since_1970 = sys_days(date).time_since_epoch() + hours(hour) + minutes(minute) + seconds(second) +
                                  milliseconds(fraction_ms) - ahead;
  if (since_1970.count() < 0) return std::nullopt;
  return since_1970.count();
}

}  // namespace stateport::replay
