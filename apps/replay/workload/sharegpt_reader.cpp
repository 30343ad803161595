// SPDX-License-Identifier: Apache-2.0
#include "workload/json_fields.hpp"
#include "workload/trace_readers.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace stateport::replay {
namespace {

using nlohmann::json;

enum class Speaker { human, assistant, system };

Speaker speaker_of(const json& turn) {
  const json& from = field(turn, "from");
  const std::string_view text = from.is_string() ? from.get_ref<const std::string&>() : std::string_view();
  if (text == "human" || text == "user") return Speaker::human;
  if (text == "gpt" || text == "assistant") return Speaker::assistant;
  if (text == "system") return Speaker::system;
  refuse("from", shown(from), "must be human, user, gpt, assistant or system");
}

/// Reads the conversations of one file.
class ShareGptReader {
 public:
  explicit ShareGptReader(const TraceOptions& options) : clock_(options, TimeUnit::ms), requests_(options) {}

  /// Throws Malformed, nothing changed.
  void add(const json& conversation) {
    if (!conversation.is_object()) throw Malformed{"not a JSON object"};
    const json& turns = field(conversation, "conversations");
    if (!turns.is_array()) throw Malformed{"conversations is not an array"};
    Conversation read{.clock = clock_};
    for (std::size_t i = 0; i < turns.size(); ++i) {
      try {
        add_turn(turns[i], read);
      } catch (const Malformed& malformed) {
        throw Malformed{fmt::format("turn {}: {}", i + 1, malformed.reason)};
      }
    }
    for (const Request& request : read.requests) requests_.add(request);
    if (!read.requests.empty()) ++sessions_;
    clock_ = read.clock;
  }

  void move_to(Workload& workload) { requests_.move_to(workload, false); }

 private:
  /// One that is read up to some turn.
  struct Conversation {
    TraceClock clock;
    std::vector<Request> requests;
    std::int64_t tokens = 0;  ///< of all turns
    std::int64_t blocks = 0;  ///< of the prompts of all requests
    bool awaits_answer = false;
  };

  void add_turn(const json& turn, Conversation& read) const {
    if (!turn.is_object()) throw Malformed{"not a JSON object"};
    const Speaker speaker = speaker_of(turn);
    const std::int64_t fewest = speaker == Speaker::human ? 1 : 0;
    const std::int64_t tokens = bounded(turn, "tokens", fewest, std::max(fewest, longest_tokens - read.tokens));
    read.tokens += tokens;
    if (speaker == Speaker::assistant && read.awaits_answer) read.requests.back().output_tokens = tokens;
    read.awaits_answer = speaker == Speaker::human;
    if (speaker != Speaker::human) return;
    if (const auto time = turn.find("timestamp"); time != turn.end())
      read.clock.set(json_arrival_ms(*time, read.clock));
    read.requests.push_back(
        {.arrival_ms = read.clock.now_ms(), .input_tokens = read.tokens, .output_tokens = 1, .session = sessions_});
    read.blocks += requests_.blocks_of(read.requests.back());
    requests_.require_room(read.blocks);
  }

  TraceClock clock_;
  UnnamedRequests requests_;
  std::int64_t sessions_ = 0;
};

/// Names the line and the character in it that a parser stopped at.
json parsed_document(const std::string& text, TraceFormat format) {
  try {
    return json::parse(text);
  } catch (const json::parse_error& error) {
    const std::string_view before = std::string_view(text).substr(0, error.byte - 1);
    const auto line = std::ranges::count(before, '\n') + 1;
    const std::size_t begin = before.rfind('\n') + 1;  // 0 in the first line
    throw TraceError(format, fmt::format("line {}", line),
                     fmt::format("not JSON, from character {} on", error.byte - begin));
  } catch (const json::exception&) {
    throw std::runtime_error(fmt::format("{}: a number is out of range", name(format)));
  }
}

}  // namespace

void read_sharegpt(TraceLines& lines, const TraceOptions& options, Trace& trace) {
  const json conversations = parsed_document(lines.rest(), trace.format);
  ShareGptReader reader(options);
  for (std::size_t i = 0; i < conversations.size(); ++i) {
    try {
      reader.add(conversations[i]);
    } catch (const Malformed& malformed) {
      refuse_entry(trace, options, fmt::format("conversation {}", i + 1), malformed);
    }
  }
  reader.move_to(trace.workload);
}

}  // namespace stateport::replay
