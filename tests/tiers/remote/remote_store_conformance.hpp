// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/remote_store.hpp>

#include "random_numbers.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// What every RemoteStore must do, whatever is behind it.
namespace stateport::test {

/// A client of one shared store.
using MakeStore = std::function<std::unique_ptr<RemoteStore>(const RemoteQueueLimits&)>;

/// The contract, in subcases. Every call begins with a store without these tests' keys.
void conforms(const MakeStore& make);

/// Random batches of two clients against a map. Answers of a batch are waited for before the next one.
void behaves_like_a_map(const MakeStore& make, Random& random, int steps);

/// Bytes that a seed tells.
[[nodiscard]] std::vector<std::byte> bytes_of_seed(std::uint64_t seed, std::size_t count);

/// Waits for so many answers; sorted by ticket.
[[nodiscard]] std::vector<Completion> answers_of(RemoteStore& store, std::size_t count);

/// One request, and its answer. Memory is registered for it where the store needs that.
[[nodiscard]] TransferStatus put(RemoteStore& store, std::string_view key, std::span<const std::byte> bytes);
[[nodiscard]] Completion get(RemoteStore& store, std::string_view key, std::vector<std::byte>& bytes);
[[nodiscard]] TransferStatus exists(RemoteStore& store, std::string_view key);
[[nodiscard]] TransferStatus remove(RemoteStore& store, std::string_view key);

}  // namespace stateport::test
