// SPDX-License-Identifier: Apache-2.0
#include "remote/remote_request.hpp"

#include <algorithm>
#include <iterator>

namespace stateport::tiers {

std::size_t bytes_of(std::span<const RemotePiece> pieces) noexcept {
  std::size_t bytes = 0;
  for (const RemotePiece& piece : pieces) bytes += piece.bytes;
  return bytes;
}

ObjectRequest::ObjectRequest(RemoteCall call, const RemoteObject& object)
    : RemoteRequest(call, object.ticket, 1, {.bytes = bytes_of(object.pieces)}), key_(object.key) {
  std::ranges::copy_if(object.pieces, std::back_inserter(pieces_),
                       [](const RemotePiece& piece) { return piece.bytes > 0; });
}

RemoteObject ObjectRequest::object(std::size_t, std::string&, RemotePiece&) const {
  return {.ticket = ticket(), .key = key_, .pieces = pieces_};
}

std::size_t ObjectRequest::bytes(std::size_t) const noexcept {
  return bytes_of(pieces_);
}

void ObjectRequest::note(std::size_t, const Completion& how) noexcept {
  how_ = how;
}

RemoteRequest::End ObjectRequest::finish(Completion& answer) noexcept {
  answer.status = how_.status;
  answer.bytes = how_.bytes;
  return End::answered;
}

}  // namespace stateport::tiers
