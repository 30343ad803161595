// SPDX-License-Identifier: Apache-2.0
#include "remote/valkey/valkey_objects.hpp"

#include "hash/random_bits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace stateport::tiers {
namespace {

using Kind = ValkeyReply::Kind;

/// Pieces that are not committed expire: their writer died. The longest put takes less.
constexpr std::string_view lease_ms = "3600000";
/// Pieces outlive their manifest, so that age alone damages no object.
constexpr double margin_s = 60;
/// Pieces that are on their way at a time: the server works while the network does.
constexpr std::uint64_t window = 2;

/// Somebody else may have written a longer value under a name of ours: up to here it is damage, and not a broken
/// connection.
constexpr std::size_t foreign_bytes_max = ValkeyManifest::piece_bytes_max;
/// The number of tries to remove a key that others change meanwhile.
constexpr int attempts_max = 8;

constexpr const char* lost_piece = "the server has lost a piece of an object";
constexpr const char* bad_manifest = "a key holds what is no manifest";
constexpr const char* refused = "the server refuses a command";
constexpr const char* strange = "the server answers with a reply that is none";

ValkeyOutcome refusal(const ValkeyReply& reply) {
  if (reply.kind != Kind::error) return {.status = TransferStatus::failed, .why = strange};
  const bool full = reply.is_error("OOM");
  return {.status = full ? TransferStatus::no_room : TransferStatus::failed, .why = refused, .word = reply.text};
}

/// A walk through the bytes of pieces.
class PieceWalk {
 public:
  explicit PieceWalk(std::span<const RemotePiece> pieces) noexcept : pieces_(pieces) {}

  /// The next `bytes`, which there are.
  [[nodiscard]] std::vector<RemotePiece> next(std::uint64_t bytes) {
    std::vector<RemotePiece> part;
    while (bytes > 0) {
      const RemotePiece& piece = pieces_.front();
      const std::size_t taken = std::min<std::uint64_t>(bytes, piece.bytes - offset_);
      part.push_back({piece.address + offset_, taken});
      bytes -= taken;
      offset_ += taken;
      if (offset_ < piece.bytes) continue;
      pieces_ = pieces_.subspan(1);
      offset_ = 0;
    }
    return part;
  }

 private:
  std::span<const RemotePiece> pieces_;
  std::size_t offset_ = 0;
};

std::string milliseconds(double seconds) {
  return fmt::format("{:.0f}", seconds * 1e3);
}

}  // namespace

std::string ValkeyObjects::name_of(std::string_view key) const {
  return fmt::format("{}:o:{}", options_.prefix, key);
}

std::vector<std::string> ValkeyObjects::piece_names(const ValkeyManifest& manifest) const {
  std::vector<std::string> names;
  names.reserve(manifest.pieces());
  for (std::uint64_t i = 0; i < manifest.pieces(); ++i) names.push_back(manifest.name_of(options_.prefix, i));
  return names;
}

ValkeyObjects::Found ValkeyObjects::read_manifest(const ValkeyReply& reply, std::string_view key) {
  switch (reply.kind) {
    case Kind::nil:
      return {.kind = Found::Kind::nothing};
    case Kind::error:
      return {.kind = reply.is_error("WRONGTYPE") ? Found::Kind::malformed : Found::Kind::refused, .word = reply.text};
    case Kind::text:
      if (const auto manifest = parse_manifest(reply.text, key))
        return {.kind = Found::Kind::manifest, .manifest = *manifest};
      return {.kind = Found::Kind::malformed};
    case Kind::other:
      return {.kind = Found::Kind::malformed};
    default:
      return {.kind = Found::Kind::refused};
  }
}

ValkeyObjects::Found ValkeyObjects::find(std::string_view key) {
  connection_.send({"GET", name_of(key)});
  return read_manifest(connection_.receive({}, foreign_bytes_max), key);
}

ValkeyObjects::Removal ValkeyObjects::remove_if(std::string_view key, const Found& found) {
  const std::string name = name_of(key);
  connection_.send({"WATCH", name});
  connection_.send({"GET", name});
  const bool is_watched = connection_.receive().is_status("OK");
  const Found now = read_manifest(connection_.receive({}, foreign_bytes_max), key);
  if (!is_watched || now != found) {
    static_cast<void>(connection_.call({"UNWATCH"}));
    return is_watched && now.kind != Found::Kind::refused ? Removal::changed : Removal::refused;
  }
  connection_.send({"MULTI"});
  connection_.send({"DEL", name});
  const bool has_pieces = found.kind == Found::Kind::manifest;
  if (has_pieces) connection_.send({"UNLINK"}, piece_names(found.manifest));
  connection_.send({"EXEC"});
  for (int i = has_pieces ? 3 : 2; i > 0; --i) static_cast<void>(connection_.receive());
  const ValkeyReply done = connection_.receive();
  if (done.kind == Kind::nil) return Removal::changed;
  const bool is_removed = done.kind == Kind::array && !done.elements.empty() && done.elements.front().integer == 1;
  return is_removed ? Removal::removed : Removal::refused;
}

ValkeyOutcome ValkeyObjects::damage(std::string_view key, const Found& found, const char* why) {
  const Removal removal = remove_if(key, found);
  if (removal == Removal::changed) return {.status = TransferStatus::gone};
  return {.status = TransferStatus::damaged, .why = why, .found_damage = removal == Removal::removed};
}

ValkeyOutcome ValkeyObjects::remove(std::string_view key) {
  for (int attempt = 0; attempt < attempts_max; ++attempt) {
    const Found found = find(key);
    if (found.kind == Found::Kind::nothing) return {.status = TransferStatus::gone};
    if (found.kind == Found::Kind::refused)
      return {.status = TransferStatus::failed, .why = refused, .word = found.word};
    if (remove_if(key, found) == Removal::removed) return {};
  }
  return {.status = TransferStatus::failed, .why = refused};
}

std::vector<ValkeyOutcome> ValkeyObjects::exist(std::span<const RemoteObject> objects) {
  for (const RemoteObject& object : objects) connection_.send({"GET", name_of(object.key)});
  std::vector<Found> found;
  found.reserve(objects.size());
  for (const RemoteObject& object : objects)
    found.push_back(read_manifest(connection_.receive({}, foreign_bytes_max), object.key));
  for (const Found& one : found)
    if (one.kind == Found::Kind::manifest) connection_.send({"EXISTS"}, piece_names(one.manifest));
  std::vector<ValkeyOutcome> outcomes(objects.size(), {.status = TransferStatus::gone});
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i].kind == Found::Kind::refused)
      outcomes[i] = {.status = TransferStatus::failed, .why = refused, .word = found[i].word};
    if (found[i].kind != Found::Kind::manifest) continue;
    const ValkeyReply there = connection_.receive();
    if (there.kind != Kind::integer)
      outcomes[i] = refusal(there);
    else if (std::cmp_equal(there.integer, found[i].manifest.pieces()))
      outcomes[i] = {};
  }
  return outcomes;
}

ValkeyManifest ValkeyObjects::new_manifest(std::uint64_t bytes) const {
  const std::uint64_t piece_bytes_min = (bytes - 1) / ValkeyManifest::pieces_max + 1;
  return {.object_bytes = bytes,
          .piece_bytes = std::max<std::uint64_t>(options_.piece_bytes, piece_bytes_min),
          .number = {detail::random_bits(), detail::random_bits()}};
}

std::optional<ValkeyOutcome> ValkeyObjects::keep_or_clear(std::string_view key, bool& found_damage) {
  const Found found = find(key);
  if (found.kind == Found::Kind::nothing) return std::nullopt;
  if (found.kind == Found::Kind::refused)
    return ValkeyOutcome{.status = TransferStatus::failed, .why = refused, .word = found.word};
  if (found.kind == Found::Kind::manifest) {
    connection_.send({"EXISTS"}, piece_names(found.manifest));
    const ValkeyReply there = connection_.receive();
    if (there.kind != Kind::integer) return refusal(there);
    if (std::cmp_equal(there.integer, found.manifest.pieces())) return ValkeyOutcome{};
  }
  if (remove_if(key, found) == Removal::refused) return ValkeyOutcome{.status = TransferStatus::failed, .why = refused};
  found_damage = true;
  return std::nullopt;
}

ValkeyOutcome ValkeyObjects::put(std::string_view key, std::span<const RemotePiece> pieces, std::uint64_t bytes) {
  bool found_damage = false;
  std::optional<ValkeyOutcome> outcome = keep_or_clear(key, found_damage);
  if (!outcome) {
    const ValkeyManifest manifest = new_manifest(bytes);
    outcome = write_pieces(manifest, pieces);
    if (!outcome) outcome = commit(key, manifest);
  }
  outcome->bytes = bytes;
  outcome->found_damage = found_damage;
  return *std::move(outcome);
}

std::optional<ValkeyOutcome> ValkeyObjects::write_pieces(const ValkeyManifest& manifest,
                                                         std::span<const RemotePiece> pieces) {
  PieceWalk walk(pieces);
  std::optional<ValkeyOutcome> problem;
  std::uint64_t sent = 0;
  for (std::uint64_t answered = 0; answered < sent || (!problem && sent < manifest.pieces()); ++answered) {
    for (; !problem && sent < std::min(manifest.pieces(), answered + window); ++sent)
      connection_.send_value({"SET", manifest.name_of(options_.prefix, sent)}, walk.next(manifest.bytes_of(sent)),
                             {"PX", lease_ms});
    const ValkeyReply reply = connection_.receive();
    if (!problem && !reply.is_status("OK")) problem = refusal(reply);
  }
  if (problem) remove_pieces(manifest);
  return problem;
}

ValkeyOutcome ValkeyObjects::commit(std::string_view key, const ValkeyManifest& manifest) {
  const std::vector<std::string> names = piece_names(manifest);
  const std::string name = name_of(key);
  const std::string text = encode_manifest(manifest, key);
  const bool is_mortal = options_.lifetime_s > 0;
  const std::string life = milliseconds(options_.lifetime_s);
  const std::string longer_life = milliseconds(options_.lifetime_s + margin_s);
  connection_.send({"MULTI"});
  for (const std::string& piece : names)
    is_mortal ? connection_.send({"PEXPIRE", piece, longer_life}) : connection_.send({"PERSIST", piece});
  is_mortal ? connection_.send({"SET", name, text, "PX", life, "NX"}) : connection_.send({"SET", name, text, "NX"});
  connection_.send({"EXEC"});
  std::optional<ValkeyReply> problem;
  for (std::size_t i = 0; i < names.size() + 2; ++i)
    if (ValkeyReply queued = connection_.receive(); !problem && queued.kind == Kind::error) problem = std::move(queued);
  const ValkeyReply done = connection_.receive();
  if (done.kind != Kind::array || done.elements.size() != names.size() + 1) {
    remove_pieces(manifest);
    return refusal(problem.value_or(done));
  }
  const ValkeyReply& stored = done.elements.back();
  if (!stored.is_status("OK")) {
    remove_pieces(manifest);
    // Another client was faster, or the key holds no text.
    return stored.kind == Kind::nil ? ValkeyOutcome{} : refusal(stored);
  }
  const bool all_there = std::ranges::all_of(std::span(done.elements).first(names.size()),
                                             [](const ValkeyReply& reply) { return reply.integer == 1; });
  if (all_there) return {};
  static_cast<void>(remove_if(key, {.kind = Found::Kind::manifest, .manifest = manifest}));
  return {.status = TransferStatus::no_room, .why = lost_piece};
}

void ValkeyObjects::remove_pieces(const ValkeyManifest& manifest) {
  connection_.send({"UNLINK"}, piece_names(manifest));
  static_cast<void>(connection_.receive());
}

ValkeyOutcome ValkeyObjects::get(std::string_view key, std::span<const RemotePiece> pieces, std::uint64_t bytes) {
  const Found found = find(key);
  if (found.kind == Found::Kind::nothing) return {.status = TransferStatus::gone};
  if (found.kind == Found::Kind::refused) return {.status = TransferStatus::failed, .why = refused, .word = found.word};
  if (found.kind == Found::Kind::malformed) return damage(key, found, bad_manifest);
  const ValkeyManifest& manifest = found.manifest;
  if (manifest.object_bytes > bytes) return {.status = TransferStatus::foreign_layout};
  PieceWalk walk(pieces);
  ValkeyReply problem{.kind = Kind::text};
  std::uint64_t sent = 0;
  for (std::uint64_t read = 0; read < sent || (problem.kind == Kind::text && sent < manifest.pieces()); ++read) {
    for (; problem.kind == Kind::text && sent < std::min(manifest.pieces(), read + window); ++sent)
      connection_.send({"GET", manifest.name_of(options_.prefix, sent)});
    const std::vector<RemotePiece> target = walk.next(manifest.bytes_of(read));
    ValkeyReply reply = connection_.receive(target, foreign_bytes_max);
    if (problem.kind == Kind::text) problem = std::move(reply);
  }
  if (problem.kind == Kind::text) return {.bytes = manifest.object_bytes};
  if (problem.kind == Kind::nil || problem.kind == Kind::other || problem.is_error("WRONGTYPE"))
    return damage(key, found, lost_piece);
  return refusal(problem);
}

}  // namespace stateport::tiers
