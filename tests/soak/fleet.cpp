// SPDX-License-Identifier: Apache-2.0
#include "fleet.hpp"

#include <stateport/tiers/in_process_store.hpp>

#include "engine_options.hpp"
#include "real_tiers.hpp"
#include "simulated_tiers.hpp"
#include "violation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace stateport::soak {

namespace {

/// Of a world before another one has its turn.
constexpr int steps_of_turn = 64;

std::uint64_t seed_of(const FleetOptions& options, Combination index, bool is_real) {
  return options.seed * 1000 + static_cast<std::uint64_t>(index) * 10 + (is_real ? 1 : 0);
}

}  // namespace

std::string_view name_of(Combination index) {
  constexpr std::array<std::string_view, 4> names = {"slots", "tree", "columns", "tree_columns"};
  return names[static_cast<std::size_t>(index)];
}

World::World(const FleetOptions& options, Combination index, bool is_real)
    : index_(index), is_real_(is_real), random_(seed_of(options, index, is_real)), workload_(random_, {}) {
  const auto remote = std::make_shared<SharedImages>(3000);
  const auto objects = std::make_shared<InProcessObjects>(std::uint64_t{16} << 20);
  for (int number = 0; number < 2; ++number) {
    EngineSetup setup = engine_setup(index, number, is_real);
    setup.planted = options.planted;
    // One of the two engines checks its checkpoints.
    setup.options.integrity =
        (options.seed + static_cast<std::uint64_t>(index) + static_cast<std::uint64_t>(number)) % 2 == 0;
    // Of the two layouts in slots one has an arena over simulated tiers, and the other one over real ones.
    const auto* const slots = std::get_if<SlotLayout>(&setup.options.layout);
    if (slots != nullptr && slots->budget_bytes == 0 &&
        (options.seed + static_cast<std::uint64_t>(index) + (is_real ? 1 : 0)) % 2 == 0)
      give_arena(setup.options);
    setup.name = fmt::format("{} {}", name(), number);
    const RequestCacheOptions cache = setup.options;
    Engine::MakeMover make_mover;
    if (is_real) {
      const std::string folder = (options.folder / fmt::format("{}-{}", name_of(index), number)).string();
      const auto model = static_cast<std::uint32_t>(index) + 1;
      make_mover = [this, cache, folder, model, objects](MarkWorld& world) -> std::unique_ptr<Mover> {
        return std::make_unique<RealTiers>(random_, cache, world, folder, model, objects, faults_);
      };
    } else {
      const auto files = std::make_shared<Images>();
      make_mover = [this, files, remote](MarkWorld& world) -> std::unique_ptr<Mover> {
        return std::make_unique<SimulatedTiers>(random_, world, files, remote, faults_);
      };
    }
    engines_.push_back(std::make_unique<Engine>(random_, workload_, std::move(setup), std::move(make_mover)));
  }
}

std::string World::name() const {
  return fmt::format("{} with {} tiers", name_of(index_), is_real_ ? "real" : "simulated");
}

void World::step() {
  engines_[static_cast<std::size_t>(random_.between(0, std::ssize(engines_) - 1))]->step();
}

void World::rest() {
  for (const auto& engine : engines_) engine->rest();
}

void World::check_invariants() const {
  for (const auto& engine : engines_) engine->check_invariants();
}

Figures World::figures() const {
  Figures all;
  for (const auto& engine : engines_) all.add(engine->figures());
  return all;
}

Fleet::Fleet(const FleetOptions& options) : options_(options) {
  for (const Combination index : options.indexes)
    for (const bool is_real : {false, true})
      if (is_real ? options.real_share > 0 : options.real_share < 1)
        worlds_.push_back(std::make_unique<World>(options_, index, is_real));
}

template <class Call>
void Fleet::in_world(World& world, Call&& call) {
  const auto where = [&](const char* what) {
    return fmt::format("{}: {}, after {} requests there", world.name(), what, world.figures().requests);
  };
  try {
    call(world);
  } catch (const std::exception& error) {
    throw Violation(where(error.what()));
  }
}

/// The world whose share of requests is furthest behind.
void Fleet::serve() {
  const auto served = [&](const std::unique_ptr<World>& world) {
    const double share = world->is_real() ? options_.real_share : 1 - options_.real_share;
    return static_cast<double>(world->figures().requests) / share;
  };
  World& world = **std::ranges::min_element(worlds_, {}, served);
  in_world(world, [](World& its) {
    for (int step = 0; step < steps_of_turn; ++step) its.step();
  });
}

void Fleet::rest() {
  for (const auto& world : worlds_) in_world(*world, [](World& its) { its.rest(); });
}

void Fleet::check_invariants() {
  for (const auto& world : worlds_) in_world(*world, [](World& its) { its.check_invariants(); });
}

Figures Fleet::figures() const {
  Figures all;
  for (const auto& world : worlds_) all.add(world->figures());
  return all;
}

Figures Fleet::figures(Combination index) const {
  Figures all;
  for (const auto& world : worlds_)
    if (world->index() == index) all.add(world->figures());
  return all;
}

std::int64_t Fleet::real_requests() const {
  std::int64_t requests = 0;
  for (const auto& world : worlds_)
    if (world->is_real()) requests += world->figures().requests;
  return requests;
}

FaultCounts Fleet::faults() const {
  FaultCounts all;
  for (const auto& world : worlds_) {
    all.failed_transfers += world->faults().failed_transfers;
    all.damaged_images += world->faults().damaged_images;
    all.vanished_images += world->faults().vanished_images;
    all.store_absences += world->faults().store_absences;
  }
  return all;
}

std::int64_t Fleet::files() const {
  std::error_code error;
  std::int64_t files = 0;
  for (std::filesystem::recursive_directory_iterator at(options_.folder, error), end; !error && at != end;
       at.increment(error))
    files += at->is_regular_file(error);
  return files;
}

}  // namespace stateport::soak
