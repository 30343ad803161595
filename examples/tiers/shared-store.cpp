// SPDX-License-Identifier: Apache-2.0
// Two engines that share a store. The second one has computed nothing, and restores the states of the first. Without an
// argument the store is memory of this process. shared-store valkey://127.0.0.1:6379/0 uses a server of Valkey or
// Redis, which every stateport that found hiredis has a client for.
#include <stateport/core/model/error.hpp>
#include <stateport/tiers/in_process_store.hpp>
#include <stateport/tiers/valkey_store.hpp>

#include "engine.hpp"

#include <string>

using namespace example;

namespace {

// docs: a shared layout
/// The tensor is not split: every machine has the whole of it.
stateport::SharedLayout whole(const stateport::StateSpec& spec) {
  const std::int64_t extent = spec.tensors()[0].shape[0];
  return {.layout = stateport::ModelLayout(spec, {{.axis = 0, .bands = {{.extent = extent}}}})};
}
// docs end

// docs: a remote tier
Engine make_engine(stateport::RemoteStore& store) {
  return Engine(
      {.remote_bytes = 64 << 20, .write_through = true},
      {.remote = stateport::RemoteOptions{.store = &store, .states = {whole(state_spec())}, .kv = whole(kv_spec())}});
}
// docs end

/// A client of its own for each engine.
std::unique_ptr<stateport::RemoteStore> connect(const std::string& url,
                                                const std::shared_ptr<stateport::InProcessObjects>& objects) {
  if (url.empty()) return std::make_unique<stateport::InProcessStore>(objects);
  return std::make_unique<stateport::ValkeyStore>(stateport::parse_valkey_url(url));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string url = argc > 1 ? argv[1] : "";
  const auto objects = std::make_shared<stateport::InProcessObjects>(std::uint64_t{64} << 20);
  const auto some = connect(url, objects), other = connect(url, objects);
  Engine first = make_engine(*some), second = make_engine(*other);

  const Engine::Answer computed = first.answer(prompt_of(150, 1000), 8);
  first.wait_for_transfers();  // its checkpoints are in the store now
  const Engine::Answer restored = second.answer(prompt_of(150, 1000), 8);
  expect(restored.tokens == computed.tokens, "a wrong answer from the store");
  std::printf("the first engine computed %d of 150 tokens, the second one loaded %d of them\n",
              150 - int(computed.reused_tokens), int(restored.loaded_tokens));
  return restored.loaded_tokens > 0 ? 0 : 1;
}
