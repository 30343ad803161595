// SPDX-License-Identifier: Apache-2.0
// stateport-llama: a model of llama.cpp under the cache.
#include "chat.hpp"
#include "replay.hpp"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>

using namespace stateport::llamacpp;

namespace {

void add_engine(CLI::App& command, EngineOptions& options) {
  command.add_option("--model", options.model, "GGUF file of the model")->required()->check(CLI::ExistingFile);
  command.add_option("--context", options.context_tokens, "tokens of a prompt and its answer together")
      ->check(CLI::Range(64, 1 << 24))
      ->capture_default_str();
  command.add_option("--threads", options.threads, "threads that compute")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--memory", options.memory_bytes, "host memory for cached KV and states [1GiB]")
      ->transform(CLI::AsSizeValue(false));
  command.add_option("--folder", options.folder, "folder of images that survive the program");
  command.add_option("--files", options.file_bytes, "bytes of that folder [8GiB]")->transform(CLI::AsSizeValue(false));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("A model of llama.cpp whose prompts reuse the KV and the states of earlier prompts", "stateport-llama");
  app.require_subcommand(1);
  ChatOptions chatting;
  CLI::App& chat_command = *app.add_subcommand("chat", "Answers the lines of the standard input, one a turn");
  add_engine(chat_command, chatting.engine);
  chat_command.add_option("--system", chatting.system, "the first message of the conversation");
  chat_command.add_option("--template", chatting.chat_template,
                          "a chat template that llama.cpp knows: chatml, llama3, …");
  chat_command.add_option("--output", chatting.output_tokens, "the largest number of tokens of an answer")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  ReplayOptions replaying;
  std::string requests;
  CLI::App& replay_command =
      *app.add_subcommand("replay", "Serves requests of token ids, and prints how many tokens each reused");
  add_engine(replay_command, replaying.engine);
  replay_command.add_flag("--compare", replaying.compare, "also measure each prompt without the cache");
  replay_command.add_option("requests", requests, "JSON lines {\"id\", \"tokens\", \"output\"}; none: standard input")
      ->check(CLI::ExistingFile);
  CLI11_PARSE(app, argc, argv);
  try {
    if (chat_command.parsed()) return chat(chatting, std::cin, std::cout);
    if (requests.empty()) return replay(replaying, std::cin, std::cout);
    std::ifstream file(requests);
    return replay(replaying, file, std::cout);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stateport-llama: %s\n", error.what());
    return 1;
  }
}
