// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "containers/assert.hpp"
#include "containers/hash_index.hpp"
#include "containers/table.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace stateport {

/// Remembers when sessions (ReuseHint::session) had their last requests. A session has the place that its id hashes to;
/// another one with the same place takes it over. Nothing allocates after construction.
class PromptSessions {
 public:
  /// Several for each of the hundred or so requests that run on a device at a time. 48 KiB.
  static constexpr std::size_t places = 2048;

  /// The place of a session that has a request now, from 1 on; 0 for the id 0, which is no session.
  std::uint16_t use(std::uint64_t id, double now_s) noexcept {
    if (id == 0) return 0;
    const std::size_t place = detail::mixed_hash(id) % places;
    Session& session = sessions_[place];
    if (session.id != id) session = {.id = id, .since_s = now_s, .used_s = now_s};
    session.used_s = std::max(session.used_s, now_s);
    return static_cast<std::uint16_t>(place + 1);
  }
  /// Whether the session at this place had a request after `used_s`. False if the place went to another session since:
  /// then nothing is known.
  [[nodiscard]] bool went_on(std::uint16_t place, double used_s) const noexcept {
    STATEPORT_ASSERT(place > 0);
    const Session& session = sessions_[place - std::size_t{1}];
    return session.since_s <= used_s && used_s < session.used_s;
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return sessions_.capacity() * sizeof(Session); }

 private:
  struct Session {
    std::uint64_t id = 0;
    double since_s = 0;  ///< has this place since then
    double used_s = 0;   ///< its last request
  };

  Table<Session> sessions_ = Table<Session>(places);
};

}  // namespace stateport
