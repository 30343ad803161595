// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <optional>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STATEPORT_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define STATEPORT_TEST_SANITIZED 1
#endif
#endif

namespace stateport::test {

/// How many instructions `body` takes: it runs in a copy of this process, which is stopped after each. None where a
/// process may not do that to its child, or where a sanitizer follows each instruction. Takes some microseconds an
/// instruction.
template <class Body>
[[nodiscard]] std::optional<std::int64_t> instructions_of(Body&& body) {
#ifdef STATEPORT_TEST_SANITIZED
  static_cast<void>(body);
  return std::nullopt;
#else
  const pid_t child = ::fork();
  if (child < 0) return std::nullopt;
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(1);
    ::raise(SIGSTOP);
    body();
    ::_exit(0);
  }
  int status = 0;
  std::int64_t count = 0;
  bool stopped = ::waitpid(child, &status, 0) == child && WIFSTOPPED(status);
  while (stopped) {
    if (::ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) != 0) break;
    stopped = ::waitpid(child, &status, 0) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP;
    ++count;
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status) == 0 ? std::optional(count) : std::nullopt;
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  return std::nullopt;
#endif
}

}  // namespace stateport::test
