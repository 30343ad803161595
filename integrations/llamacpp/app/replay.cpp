// SPDX-License-Identifier: Apache-2.0
#include "replay.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <istream>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace stateport::llamacpp {
namespace {

struct Request {
  std::string id;
  std::vector<llama_token> tokens;
  std::int64_t output = 1;
};

Request read(const std::string& line, const Engine& engine) {
  const nlohmann::json object = nlohmann::json::parse(line);
  Request request{.id = object.at("id").get<std::string>(),
                  .tokens = object.at("tokens").get<std::vector<llama_token>>(),
                  .output = object.value("output", std::int64_t{1})};
  if (request.output < 1) throw std::runtime_error("output must be at least 1");
  const std::int64_t all = std::ssize(request.tokens) + request.output;
  if (request.tokens.empty() || all > engine.context_tokens())
    throw std::runtime_error("tokens must not be empty, and with the output at most --context");
  const std::int32_t words = llama_vocab_n_tokens(engine.vocabulary());
  if (std::ranges::any_of(request.tokens, [&](llama_token token) { return token < 0 || token >= words; }))
    throw std::runtime_error("the model's vocabulary has " + std::to_string(words) + " tokens");
  return request;
}

}  // namespace

int replay(const ReplayOptions& options, std::istream& in, std::ostream& out) {
  Engine engine(options.engine);
  std::string line;
  for (std::int64_t number = 1; std::getline(in, line); ++number) {
    if (line.empty()) continue;
    Request request;
    try {
      request = read(line, engine);
    } catch (const std::exception& error) {
      throw std::runtime_error("line " + std::to_string(number) + ": " + error.what());
    }
    const Answer answer = engine.serve(request.tokens, request.output);
    nlohmann::ordered_json result = {{"id", request.id},
                                     {"prompt", request.tokens.size()},
                                     {"reused", answer.reused_tokens},
                                     {"computed", std::ssize(request.tokens) - answer.reused_tokens},
                                     {"first_token_ms", 1000 * answer.first_token_s},
                                     {"image_ms", 1000 * answer.image_s}};
    if (options.compare) result["plain_ms"] = 1000 * engine.time_without_cache(request.tokens);
    result["output"] = answer.tokens;
    out << result.dump() << std::endl;
  }
  engine.drain();
  return 0;
}

}  // namespace stateport::llamacpp
