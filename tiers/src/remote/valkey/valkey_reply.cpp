// SPDX-License-Identifier: Apache-2.0
#include "remote/valkey/valkey_reply.hpp"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace stateport::tiers {
namespace {

constexpr std::size_t word_bytes_max = 32;

/// The first word of an error names its kind. The rest may repeat arguments of the command, so it is not kept.
std::string first_word(std::string_view text) {
  std::string word;
  for (const char letter : text.substr(0, word_bytes_max)) {
    if (letter < 'A' || letter > 'Z') break;
    word.push_back(letter);
  }
  return word;
}

void scatter(std::string_view bytes, std::span<const RemotePiece> pieces) noexcept {
  for (const RemotePiece& piece : pieces) {
    std::memcpy(piece.address, bytes.data(), piece.bytes);
    bytes.remove_prefix(piece.bytes);
  }
}

}  // namespace

/// Callbacks of hiredis. An object is any address but null, which ends the connection.
struct ValkeyReplyMaker::Functions {
  template <class Fill>
  static void* make(const redisReadTask* task, Fill&& fill) noexcept {
    auto& maker = *static_cast<ValkeyReplyMaker*>(task->privdata);
    try {
      ValkeyReply* reply = maker.place(task);
      if (reply) fill(maker, *reply);
      return reply ? &maker : nullptr;
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }
  static void* text(const redisReadTask* task, char* bytes, std::size_t count) {
    return make(task, [&](ValkeyReplyMaker& maker, ValkeyReply& reply) {
      maker.fill(reply, task->type, {bytes, count}, task->parent == nullptr);
    });
  }
  static void* array(const redisReadTask* task, std::size_t) {
    return make(task, [&](ValkeyReplyMaker&, ValkeyReply& reply) {
      reply.kind =
          task->type == REDIS_REPLY_ARRAY && !task->parent ? ValkeyReply::Kind::array : ValkeyReply::Kind::other;
    });
  }
  static void* integer(const redisReadTask* task, long long value) {
    return make(task, [&](ValkeyReplyMaker&, ValkeyReply& reply) {
      reply.kind = ValkeyReply::Kind::integer;
      reply.integer = value;
    });
  }
  static void* real(const redisReadTask* task, double, char*, std::size_t) {
    return make(task, [](ValkeyReplyMaker&, ValkeyReply& reply) { reply.kind = ValkeyReply::Kind::other; });
  }
  static void* nil(const redisReadTask* task) {
    return make(task, [](ValkeyReplyMaker&, ValkeyReply& reply) { reply.kind = ValkeyReply::Kind::nil; });
  }
  static void* truth(const redisReadTask* task, int) {
    return make(task, [](ValkeyReplyMaker&, ValkeyReply& reply) { reply.kind = ValkeyReply::Kind::other; });
  }
  static void free(void*) {}
};

void ValkeyReplyMaker::attach(redisReader& reader) {
  static redisReplyObjectFunctions functions = {Functions::text, Functions::array, Functions::integer, Functions::real,
                                                Functions::nil,  Functions::truth, Functions::free};
  reader.fn = &functions;
  reader.privdata = this;
  reader.maxelements = static_cast<long long>(objects_max);
}

void ValkeyReplyMaker::begin(std::span<const RemotePiece> target) {
  reply_ = {};
  target_ = target;
  target_bytes_ = 0;
  for (const RemotePiece& piece : target) target_bytes_ += piece.bytes;
  objects_ = 0;
}

ValkeyReply* ValkeyReplyMaker::place(const void* task) {
  const auto* parent = static_cast<const redisReadTask*>(task)->parent;
  int depth = 0;
  for (const auto* at = parent; at && depth <= depth_max; at = at->parent) ++depth;
  if (++objects_ > objects_max || depth > depth_max) return nullptr;
  if (!parent) return &reply_;
  return parent->parent ? &ignored_ : &reply_.elements.emplace_back();
}

void ValkeyReplyMaker::fill(ValkeyReply& reply, int type, std::string_view text, bool is_root) {
  if (type == REDIS_REPLY_ERROR) {
    reply.kind = ValkeyReply::Kind::error;
    reply.text = first_word(text);
    return;
  }
  const bool is_value = type == REDIS_REPLY_STRING;
  if (!is_value && type != REDIS_REPLY_STATUS) return;
  if (is_root && is_value && !target_.empty() && text.size() == target_bytes_) {
    scatter(text, target_);
    reply.kind = ValkeyReply::Kind::text;
  } else if (text.size() <= (is_root ? text_bytes_max : element_bytes_max) && (!is_value || target_.empty())) {
    reply.kind = is_value ? ValkeyReply::Kind::text : ValkeyReply::Kind::status;
    reply.text = text;
  }
}

}  // namespace stateport::tiers
