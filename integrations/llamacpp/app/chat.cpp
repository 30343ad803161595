// SPDX-License-Identifier: Apache-2.0
#include "chat.hpp"

#include <algorithm>
#include <cstdio>
#include <istream>
#include <ostream>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

namespace stateport::llamacpp {
namespace {

struct Message {
  std::string role, content;
};

/// The conversation as text, with the beginning of the answer.
std::string text_of(const std::vector<Message>& messages, const char* chat_template) {
  std::vector<llama_chat_message> plain;
  for (const Message& message : messages) plain.push_back({message.role.c_str(), message.content.c_str()});
  std::string text(1024, '\0');
  for (;;) {
    const std::int32_t bytes = llama_chat_apply_template(chat_template, plain.data(), plain.size(), true, text.data(),
                                                         static_cast<std::int32_t>(text.size()));
    if (bytes < 0) throw std::runtime_error("llama.cpp does not know the model's chat template: give --template");
    const bool fits = std::cmp_less_equal(bytes, text.size());
    text.resize(static_cast<std::size_t>(bytes));
    if (fits) return text;
  }
}

std::vector<llama_token> tokens_of(const llama_vocab* vocabulary, std::string_view text) {
  std::vector<llama_token> tokens(text.size() + 8);
  const std::int32_t count = llama_tokenize(vocabulary, text.data(), static_cast<std::int32_t>(text.size()),
                                            tokens.data(), static_cast<std::int32_t>(tokens.size()), true, true);
  if (count < 0) throw std::runtime_error("llama_tokenize finds more tokens than the text has bytes");
  tokens.resize(static_cast<std::size_t>(count));
  return tokens;
}

std::string piece_of(const llama_vocab* vocabulary, llama_token token) {
  std::string piece(256, '\0');
  const std::int32_t bytes =
      llama_token_to_piece(vocabulary, token, piece.data(), static_cast<std::int32_t>(piece.size()), 0, false);
  piece.resize(static_cast<std::size_t>(std::max(bytes, 0)));
  return piece;
}

/// Seconds a token, of the prompts that were computed so far.
class Speed {
 public:
  void add(std::int64_t tokens, double seconds) {
    tokens_ += tokens;
    seconds_ += seconds;
  }
  [[nodiscard]] double per_token() const noexcept { return tokens_ == 0 ? 0 : seconds_ / static_cast<double>(tokens_); }

 private:
  std::int64_t tokens_ = 0;
  double seconds_ = 0;
};

}  // namespace

int chat(const ChatOptions& options, std::istream& in, std::ostream& out) {
  Engine engine(options.engine);
  const char* const of_model = llama_model_chat_template(engine.model(), nullptr);
  if (options.chat_template.empty() && of_model == nullptr)
    throw std::runtime_error("the model has no chat template: give --template");
  const std::string chat_template = options.chat_template.empty() ? of_model : options.chat_template;
  std::vector<Message> messages;
  if (!options.system.empty()) messages.push_back({"system", options.system});
  Speed speed;
  std::string line;
  for (out << "> " << std::flush; std::getline(in, line); out << "> " << std::flush) {
    if (line.empty()) continue;
    messages.push_back({"user", line});
    const std::vector<llama_token> prompt = tokens_of(engine.vocabulary(), text_of(messages, chat_template.c_str()));
    if (std::ssize(prompt) >= engine.context_tokens()) {
      out << "The conversation has " << prompt.size() << " tokens, and the context has " << engine.context_tokens()
          << ".\n";
      break;
    }
    std::string content;
    const Answer answer = engine.serve(prompt, options.output_tokens, [&](llama_token token) {
      const std::string piece = piece_of(engine.vocabulary(), token);
      content += piece;
      out << piece << std::flush;
    });
    messages.push_back({"assistant", content});
    const std::int64_t computed = std::ssize(prompt) - answer.reused_tokens;
    speed.add(computed, answer.first_token_s);
    char facts[160];
    std::snprintf(facts, sizeof facts, "\n[%lld of %zu tokens reused, first token in %.2f s, about %.2f s saved]\n",
                  static_cast<long long>(answer.reused_tokens), prompt.size(), answer.first_token_s,
                  speed.per_token() * static_cast<double>(answer.reused_tokens));
    out << facts;
  }
  out << "\n";
  engine.drain();
  return 0;
}

}  // namespace stateport::llamacpp
