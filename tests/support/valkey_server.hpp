// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/valkey_store.hpp>

#include "temporary_folder.hpp"

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace stateport::test {

/// A server of this test's own, on a free port of the loopback device, ended with this.
class ValkeyServer {
 public:
  struct Options {
    std::string password = "open sesame";
    bool tls = false;
    bool keeps_data = false;  ///< acknowledged values survive a kill
    std::vector<std::string> more = {};
  };

  /// The program; empty: there is none.
  [[nodiscard]] static std::string program();

  ValkeyServer() : ValkeyServer(Options{}) {}
  explicit ValkeyServer(const Options& options);
  ValkeyServer(const ValkeyServer&) = delete;
  ValkeyServer& operator=(const ValkeyServer&) = delete;
  ~ValkeyServer();

  /// How to reach it, with pieces of 64 KiB.
  [[nodiscard]] ValkeyStoreOptions client() const;
  [[nodiscard]] std::string file(const std::string& name) const { return (folder_.path() / name).string(); }

  void kill();
  void start();
  void stop_running() const;  ///< it answers nothing, and keeps its connections
  void go_on() const;

  /// A command in words over a connection of its own; the reply as text: integers and texts as they are, nil as
  /// "(nil)", an array as its elements with spaces between.
  std::string command(const std::vector<std::string>& words) const;
  [[nodiscard]] std::vector<std::string> keys(const std::string& pattern = "*") const;

 private:
  void make_certificate() const;
  [[nodiscard]] bool is_up() const;

  Options options_;
  TemporaryFolder folder_;
  int port_ = 0;
  pid_t process_ = 0;
};

}  // namespace stateport::test
