// SPDX-License-Identifier: Apache-2.0
#include "valkey_server.hpp"

#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace stateport::test {
namespace {

using Context = std::unique_ptr<redisContext, decltype(&redisFree)>;
using Reply = std::unique_ptr<redisReply, decltype(&freeReplyObject)>;

int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  const bool ok = ::bind(socket, any, bytes) == 0 && ::getsockname(socket, any, &bytes) == 0;
  ::close(socket);
  if (!ok) throw std::runtime_error("no free port");
  return ntohs(address.sin_port);
}

Reply call(redisContext* context, const std::vector<std::string>& words) {
  std::vector<const char*> texts;
  std::vector<std::size_t> bytes;
  for (const std::string& word : words) {
    texts.push_back(word.data());
    bytes.push_back(word.size());
  }
  void* reply = redisCommandArgv(context, static_cast<int>(words.size()), texts.data(), bytes.data());
  return {static_cast<redisReply*>(reply), &freeReplyObject};
}

std::string text_of(const redisReply* reply) {
  if (!reply) return "(lost)";
  switch (reply->type) {
    case REDIS_REPLY_INTEGER:
      return std::to_string(reply->integer);
    case REDIS_REPLY_NIL:
      return "(nil)";
    case REDIS_REPLY_ARRAY: {
      std::string text;
      for (std::size_t i = 0; i < reply->elements; ++i) text += (i > 0 ? " " : "") + text_of(reply->element[i]);
      return text;
    }
    default:
      return {reply->str, reply->len};
  }
}

}  // namespace

std::string ValkeyServer::program() {
  if (const char* given = std::getenv("STATEPORT_VALKEY_SERVER")) return given;
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');)
    for (const char* name : {"/valkey-server", "/redis-server"})
      if (::access((folder + name).c_str(), X_OK) == 0) return folder + name;
  return {};
}

ValkeyServer::ValkeyServer(const Options& options) : options_(options) {
  if (options_.tls) make_certificate();
  start();
}

ValkeyServer::~ValkeyServer() {
  kill();
}

void ValkeyServer::make_certificate() const {
  const std::string command =
      "cd '" + folder_.path().string() +
      "' && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -keyout "
      "key.pem -out cert.pem -subj /CN=stateport -addext "
      "subjectAltName=DNS:store.test,IP:127.0.0.1 2>/dev/null";
  if (std::system(command.c_str()) != 0) throw std::runtime_error("openssl makes no certificate");
}

void ValkeyServer::start() {
  const std::string folder = folder_.path().string();
  for (int attempt = 0; attempt < 10; ++attempt) {
    if (port_ == 0) port_ = free_port();
    const std::string port = std::to_string(port_);
    std::vector<std::string> words = {program(),
                                      "--bind",
                                      "127.0.0.1",
                                      "--save",
                                      "",
                                      "--dir",
                                      folder,
                                      "--logfile",
                                      folder + "/log",
                                      "--unixsocket",
                                      folder + "/socket",
                                      "--appendonly",
                                      options_.keeps_data ? "yes" : "no",
                                      options_.tls ? "--tls-port" : "--port",
                                      port};
    if (!options_.password.empty()) words.insert(words.end(), {"--requirepass", options_.password});
    if (options_.tls)
      words.insert(words.end(), {"--port", "0", "--tls-cert-file", folder + "/cert.pem", "--tls-key-file",
                                 folder + "/key.pem", "--tls-auth-clients", "no"});
    // The server writes a value to the file before it acknowledges it. While it calls fsync it would put that off.
    if (options_.keeps_data) words.insert(words.end(), {"--appendfsync", "no"});
    words.insert(words.end(), options_.more.begin(), options_.more.end());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    process_ = ::fork();
    if (process_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int nothing = ::open("/dev/null", O_RDWR);
      ::dup2(nothing, 1);
      ::dup2(nothing, 2);
      ::execv(arguments[0], arguments.data());
      ::_exit(127);
    }
    while (::waitpid(process_, nullptr, WNOHANG) == 0) {
      if (is_up()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    process_ = 0;
    port_ = 0;  // somebody else may have it
  }
  throw std::runtime_error("the server does not start");
}

bool ValkeyServer::is_up() const {
  return command({"PING"}) == "PONG";
}

void ValkeyServer::kill() {
  if (process_ == 0) return;
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
  process_ = 0;
}

void ValkeyServer::stop_running() const {
  ::kill(process_, SIGSTOP);
}

void ValkeyServer::go_on() const {
  ::kill(process_, SIGCONT);
}

ValkeyStoreOptions ValkeyServer::client() const {
  ValkeyStoreOptions options{.port = port_, .password = options_.password, .piece_bytes = std::size_t{64} << 10};
  if (options_.tls) options.tls = ValkeyTls{.ca_file = file("cert.pem")};
  return options;
}

std::string ValkeyServer::command(const std::vector<std::string>& words) const {
  const Context context(redisConnectUnix(file("socket").c_str()), &redisFree);
  if (!context || context->err != 0) return "(lost)";
  if (!options_.password.empty()) call(context.get(), {"AUTH", options_.password});
  return text_of(call(context.get(), words).get());
}

std::vector<std::string> ValkeyServer::keys(const std::string& pattern) const {
  std::istringstream names(command({"KEYS", pattern}));
  std::vector<std::string> keys;
  for (std::string name; names >> name;) keys.push_back(name);
  return keys;
}

}  // namespace stateport::test
