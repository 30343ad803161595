// SPDX-License-Identifier: Apache-2.0
#include "remote/forget_request.hpp"

#include <algorithm>

namespace stateport::tiers {
namespace {

/// Clients that write at a time may replace each other's objects: after so many writes others have the store, and the
/// next exchange goes on.
constexpr std::size_t writes_max = 32;

}  // namespace

ForgetRequest::ForgetRequest(const ModelId& model, ForgetShare& share) noexcept
    : RemoteRequest(RemoteCall::get, 0, 1, {}), model_(model), share_(share) {}

ForgetRequest::~ForgetRequest() {
  if (has_ended_) return;
  share_.status = TransferStatus::failed;
  share_.state = ForgetShare::State::ended;
}

RemoteObject ForgetRequest::object(std::size_t /*part*/, std::string& name, RemotePiece& piece) const {
  name = ForgetObject::name(model_, copy_);
  if (call() == RemoteCall::remove) return {.key = name};
  piece = {share_.object.data(), share_.object.size()};
  if (call() == RemoteCall::put) piece.bytes = ForgetObject::write(share_.known.all(), share_.object);
  return {.key = name, .pieces = {&piece, 1}};
}

std::size_t ForgetRequest::bytes(std::size_t /*part*/) const noexcept {
  return call() == RemoteCall::remove ? 0 : share_.object.size();
}

TransferStatus ForgetRequest::verify(std::size_t /*part*/, std::uint64_t bytes) {
  const std::span<const std::byte> object = std::span(share_.object).first(bytes);
  const std::optional<std::size_t> count = ForgetObject::check(object);
  if (!count) return TransferStatus::damaged;
  using enum detail::ForgetRecords::Added;
  for (std::size_t i = 0; i < *count; ++i) is_new_ |= share_.known.add(ForgetObject::record(object, i)) != known;
  is_whole_ = std::ranges::all_of(share_.known.all(), [&](const ForgetRecord& record) {
    for (std::size_t i = 0; i < *count; ++i)
      if (ForgetObject::record(object, i) == record) return true;
    return false;
  });
  return TransferStatus::done;
}

void ForgetRequest::note(std::size_t /*part*/, const Completion& how) noexcept {
  last_ = how.status;
}

RemoteRequest::End ForgetRequest::finish(Completion& answer) noexcept {
  const std::optional<TransferStatus> ended = go_on();
  if (!ended) return End::anew;
  answer.status = share_.status = *ended;
  has_ended_ = true;
  share_.state = ForgetShare::State::ended;
  return End::silent;
}

std::optional<TransferStatus> ForgetRequest::go_on() noexcept {
  if (last_ == TransferStatus::failed || last_ == TransferStatus::no_room) return last_;
  if (call() == RemoteCall::get) return go_on_after_get();
  if (call() == RemoteCall::put) found_ = {};
  set_call(call() == RemoteCall::remove ? RemoteCall::put : RemoteCall::get);
  return std::nullopt;
}

void ForgetRequest::note_object() noexcept {
  if (is_new_) std::ranges::replace(found_, Found::whole, Found::lacking);
  is_new_ = false;
  found_[copy_] = last_ == TransferStatus::gone   ? Found::gone
                  : last_ != TransferStatus::done ? Found::damaged
                  : is_whole_                     ? Found::whole
                                                  : Found::lacking;
}

std::optional<TransferStatus> ForgetRequest::go_on_after_get() noexcept {
  note_object();
  if (share_.known.all().size() > CacheEpochs::records_max) return TransferStatus::no_room;
  const Found least = std::ranges::min(found_);
  if (least == Found::whole) return TransferStatus::done;
  if (std::ranges::max(found_) == Found::gone && least == Found::gone && share_.known.all().empty())
    return TransferStatus::done;
  copy_ = static_cast<std::size_t>(std::ranges::find(found_, least) - found_.begin());
  if (least == Found::nothing_yet) return std::nullopt;
  if (++writes_ > writes_max) return TransferStatus::failed;
  set_call(least == Found::gone ? RemoteCall::put : RemoteCall::remove);
  return std::nullopt;
}

}  // namespace stateport::tiers
