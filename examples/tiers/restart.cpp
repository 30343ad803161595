// SPDX-License-Identifier: Apache-2.0
// A cache that survives a restart: host memory and files below the device. The second engine, which stands for the
// process after a restart, finds in the folder what the first one has computed.
#include "engine.hpp"

#include <filesystem>
#include <string>

using namespace example;

namespace {

// docs: host and files
Engine make_engine(const std::string& folder) {
  constexpr std::int64_t host_bytes = 1 << 20, file_bytes = 16 << 20;
  return Engine({.host_bytes = host_bytes, .file_bytes = file_bytes},
                {.host_budget_bytes = host_bytes,
                 .files = stateport::FileTierOptions{.folder = folder, .capacity_bytes = file_bytes}});
}
// docs end

}  // namespace

int main(int argc, char** argv) {
  const bool named = argc > 1;  // with the name of a folder the program can be run twice
  const std::string folder =
      named ? argv[1] : (std::filesystem::temp_directory_path() / "stateport-restart-example").string();
  if (!named) std::filesystem::remove_all(folder);

  std::vector<Engine::Answer> first;
  {
    Engine engine = make_engine(folder);
    for (const Token question : {1000, 2000, 3000, 4000}) first.push_back(engine.answer(prompt_of(150, question), 8));
    engine.drain(stateport::Medium::file);
  }

  Engine engine = make_engine(folder);
  std::int64_t loaded = 0;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const Engine::Answer again = engine.answer(prompt_of(150, static_cast<Token>(1000 * (i + 1))), 8);
    expect(again.tokens == first[i].tokens, "a wrong answer after the restart");
    loaded += again.loaded_tokens;
    std::printf("after the restart %d of 150 tokens were not computed, %d of them were loaded\n",
                int(again.reused_tokens), int(again.loaded_tokens));
  }
  if (!named) std::filesystem::remove_all(folder);
  return loaded > 0 ? 0 : 1;
}
