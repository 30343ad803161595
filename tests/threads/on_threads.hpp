// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

namespace stateport::test {

/// For threads: doctest's own checks would synchronise them.
inline void must(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

/// Runs body(0) … body(count - 1), each on a thread of its own, from one moment on. An exception of one fails the test.
inline void on_threads(std::size_t count, const std::function<void(std::size_t)>& body) {
  std::atomic<std::size_t> ready = 0;
  std::vector<std::exception_ptr> failures(count);
  std::vector<std::thread> threads;
  for (std::size_t number = 0; number < count; ++number)
    threads.emplace_back([&, number] {
      ++ready;
      while (ready < count) std::this_thread::yield();
      try {
        body(number);
      } catch (...) {
        failures[number] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (!failure) continue;
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      FAIL_CHECK(error.what());
    }
  }
}

}  // namespace stateport::test
