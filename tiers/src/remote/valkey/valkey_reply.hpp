// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/remote_store.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

struct redisReader;

namespace stateport::tiers {

/// A reply of the server, as far as a store has a use for it.
struct ValkeyReply {
  enum class Kind : std::uint8_t {
    nil,
    status,
    error,    ///< `text` is its first word
    integer,  ///< `integer`
    text,     ///< `text`, or the bytes were written to where they were awaited
    array,    ///< `elements`; an array within it is `other`
    other     ///< of another type, or a text that is longer than a store has a use for
  };
  Kind kind = Kind::other;
  std::int64_t integer = 0;
  std::string text;
  std::vector<ValkeyReply> elements;

  [[nodiscard]] bool is_status(std::string_view word) const { return kind == Kind::status && text == word; }
  [[nodiscard]] bool is_error(std::string_view word) const { return kind == Kind::error && text == word; }
};

/// Makes ValkeyReply objects while hiredis reads. Its memory is bounded, whatever the server sends.
class ValkeyReplyMaker {
 public:
  static constexpr std::size_t text_bytes_max = 4096;
  static constexpr std::size_t element_bytes_max = 64;  ///< of a text in an array
  /// Of one reply, arrays within arrays included.
  static constexpr std::size_t objects_max = 200000;
  /// Arrays that an object may lie within. No command of a store needs more than one. hiredis copies its stack once
  /// every nine levels.
  static constexpr int depth_max = 4;

  /// Lets the reader make replies here. Outlives its use.
  void attach(redisReader& reader);
  /// Begins a reply. A text with exactly the size of `target` is written there.
  void begin(std::span<const RemotePiece> target);
  [[nodiscard]] ValkeyReply take() { return std::move(reply_); }

 private:
  struct Functions;
  /// Where the next object goes: the reply, an element of it, or nowhere. nullptr: there are too many,
  /// or it lies too deep.
  [[nodiscard]] ValkeyReply* place(const void* task);
  void fill(ValkeyReply& reply, int type, std::string_view text, bool is_root);

  ValkeyReply reply_;
  ValkeyReply ignored_;
  std::span<const RemotePiece> target_;
  std::size_t target_bytes_ = 0;
  std::size_t objects_ = 0;
};

}  // namespace stateport::tiers
