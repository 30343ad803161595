// SPDX-License-Identifier: Apache-2.0
#include "slot_replay.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <stdexcept>

namespace stateport::conformance {
namespace {

std::int64_t integer(const Json& args, const char* key, std::int64_t otherwise = 0) {
  return args.is_object() && args.contains(key) ? args.at(key).get<std::int64_t>() : otherwise;
}

BlockId block_of(const Json& args) {
  return BlockId{args.at("block").get<std::int32_t>()};
}

BlockId block_of(const std::string& text) {
  return BlockId{static_cast<std::int32_t>(std::stol(text))};
}

/// The order of ref_zero of the recorded system: by block id, since equal keys are ordered by index.
class ByBlock final : public EvictionPolicy {
 public:
  std::string_view name() const noexcept override { return "by block"; }
  VictimKey key(const VictimFacts&) const noexcept override { return {}; }
};

bool drops_blocks(const Json& config) {
  const auto policy = config.value("policy", std::string("lru"));
  if (policy != "lru" && policy != "ref_zero") throw std::runtime_error("unknown policy " + policy);
  return policy == "ref_zero";
}

BlockPoolOptions block_options(const Json& config) {
  return {.blocks = config.at("nb").get<std::int32_t>(),
          .unreferenced = drops_blocks(config) ? UnreferencedBlocks::dropped : UnreferencedBlocks::cached};
}

SlotAllocatorOptions slot_options(const Json& config) {
  return {.eviction = drops_blocks(config) ? std::make_shared<ByBlock>() : nullptr};
}

constexpr std::int32_t max_rows = 64;

}  // namespace

std::vector<BlockId> blocks_of(const Json& list) {
  std::vector<BlockId> blocks;
  for (const Json& block : list) blocks.emplace_back(block.get<std::int32_t>());
  return blocks;
}

Json ids_json(std::span<const BlockId> blocks) {
  Json list = Json::array();
  for (const BlockId block : blocks) list.push_back(block.value());
  return list;
}

Json ids_json(std::span<const SlotId> slots) {
  Json list = Json::array();
  for (const SlotId slot : slots) list.push_back(slot.value());
  return list;
}

PrefillChunk chunk_of(const Json& row, std::int32_t prefill_row, SlotId live_slot, std::span<const BlockId> blocks,
                      std::span<const PrefixHash> prefixes) {
  return {.row = prefill_row,
          .live_slot = live_slot,
          .prompt_tokens = row.at("prompt_len").get<std::int64_t>(),
          .finished_tokens = row.at("finished").get<std::int64_t>(),
          .skip_tokens = row.at("skip").get<std::int64_t>(),
          .chunk_tokens = row.at("chunk_len").get<std::int64_t>(),
          .matched_blocks = row.at("kv_matched").get<std::int32_t>(),
          .required_blocks = row.at("required_blocks").get<std::int32_t>(),
          .blocks = blocks,
          .prefixes = prefixes};
}

Json planned_json(const PlannedCheckpoints& planned, bool has_any) {
  const auto count = static_cast<std::size_t>(planned.count);
  return {{"offsets", std::vector(planned.offsets.begin(), planned.offsets.begin() + planned.count)},
          {"blocks", ids_json(std::span(planned.blocks).first(count))},
          {"eos_block", planned.end_block.value()},
          {"has_any", has_any}};
}

void TamperedPool::set_ref_count(BlockId block, std::int32_t count) {
  if (pool_.is_free(block)) {
    made_up_[block].ref_count = count;
    return tell(block);
  }
  const std::int64_t tick = pool_.last_use_tick(block);
  while (pool_.ref_count(block) < count) pool_.retain({&block, 1});
  while (pool_.ref_count(block) > count) pool_.release({&block, 1});
  if (!pool_.is_free(block)) pool_.set_last_use({&block, 1}, tick);
}

void TamperedPool::set_tick(BlockId block, std::int64_t tick) {
  if (!pool_.is_free(block)) return pool_.set_last_use({&block, 1}, tick);
  made_up_[block].tick = tick;
  tell(block);
}

void TamperedPool::tell(BlockId block) {
  if (ref_count(block) > 0) return;
  report_unreferenced({&block, 1});
}

void TamperedPool::forget(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) made_up_.erase(block);
}

std::int32_t TamperedPool::ref_count(BlockId block) const {
  const auto made_up = made_up_.find(block);
  return made_up != made_up_.end() ? made_up->second.ref_count.value_or(pool_.ref_count(block))
                                   : pool_.ref_count(block);
}

std::int64_t TamperedPool::last_use_tick(BlockId block) const {
  const auto made_up = made_up_.find(block);
  return made_up != made_up_.end() ? made_up->second.tick.value_or(pool_.last_use_tick(block))
                                   : pool_.last_use_tick(block);
}

BlockHash TamperedPool::hash(BlockId block) const {
  const auto made_up = made_up_.find(block);
  return made_up != made_up_.end() ? made_up->second.hash.value_or(pool_.hash(block)) : pool_.hash(block);
}

void TamperedPool::add_listener(BlockListener& listener) {
  BlockDirectory::add_listener(listener);
  pool_.add_listener(listener);
}

void TamperedPool::remove_listener(BlockListener& listener) noexcept {
  BlockDirectory::remove_listener(listener);
  pool_.remove_listener(listener);
}

void SlotReplay::Payload::resize(std::size_t slots) {
  for (Layers* layers : {&ssm, &conv})
    for (std::vector<std::int64_t>& layer : *layers) layer.resize(std::max(layer.size(), slots), 0);
}

void SlotReplay::Payload::fill(std::size_t slot, const Json& args) {
  resize(slot + 1);
  for (std::size_t layer = 0; layer < ssm.size(); ++layer) {
    ssm[layer][slot] = args.at("ssm").get<std::int64_t>() + static_cast<std::int64_t>(layer);
    conv[layer][slot] = args.at("conv").get<std::int64_t>() + static_cast<std::int64_t>(layer);
  }
}

Json SlotReplay::Payload::read(std::size_t slot) const {
  return {{"ssm", {ssm[0].at(slot), ssm[1].at(slot)}}, {"conv", {conv[0].at(slot), conv[1].at(slot)}}};
}

SlotReplay::SlotReplay(const Json& config)
    : blocks_(block_options(config)),
      slots_(config.at("slots").get<std::int32_t>()),
      states_(slots_, blocks_, slot_options(config)),
      planner_(states_, {.block_size_tokens = config.value("bs", 256),
                         .alignment_tokens = config.value("align", 128),
                         .max_rows = max_rows}) {
  cached_.resize(static_cast<std::size_t>(slots_.capacity_slots()));
  live_.resize(static_cast<std::size_t>(config.value("max_req", 1)));
}

void SlotReplay::run(const Json& op) {
  const auto name = op.at("op").get<std::string>();
  const Json args = op.value("args", Json::object());
  if (op.contains("error")) {
    expect_refusal(op, op.at("error").get<std::string>());
  } else if (refused_by_rule(name, args)) {
    expect_refusal(op, "assert");
  } else {
    const Json got = call(name, args);
    if (op.contains("result")) expect_equal(got, op.at("result"), name);
  }
  check_invariants();
  if (op.contains("state")) expect_state(op.at("state"));
}

/// A refused op changes nothing and says why.
void SlotReplay::expect_refusal(const Json& op, const std::string& error) {
  const auto name = op.at("op").get<std::string>();
  const Json args = op.value("args", Json::object());
  try {
    static_cast<void>(call(name, args));
  } catch (const SlotCapacityError& refusal) {
    if (error != "capacity") throw;
    if (op.contains("required")) expect_equal(refusal.required(), op.at("required"), "required");
    if (op.contains("available")) expect_equal(refusal.available(), op.at("available"), "available");
    return;
  } catch (const InvalidArgument&) {
    if (error == "capacity") throw;
    return;
  }
  throw std::runtime_error(name + ": not refused (" + error + ")");
}

/// Where the library is deliberately stricter than the recorded system: ids out of range (they wrapped around there),
/// and states registered for blocks without a slot. The rest of such a registration is done.
bool SlotReplay::refused_by_rule(const std::string& op, const Json& args) {
  std::vector<BlockId> blocks = args.contains("blocks") ? blocks_of(args.at("blocks")) : std::vector<BlockId>{};
  if (args.contains("block")) blocks.push_back(block_of(args));
  if (op != "set_row" &&
      std::ranges::any_of(blocks, [&](BlockId id) { return !id.valid() || id.value() >= blocks_.block_count(); }))
    return true;
  if (op != "hash_register") return false;
  const auto hashes = args.at("hashes").get<std::vector<BlockHash>>();
  bool refused = false;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto entry = std::pair(hashes.at(i), blocks[i].value());
    const bool without_slot = hashes[i] > 0 && !states_.has_state(blocks[i]);
    // A recorded entry is hidden while the recorded system has it and the library has not.
    std::erase_if(refused_, [&](const auto& other) { return other.first == hashes[i]; });
    if (!without_slot) continue;
    refused_.insert(entry);
    refused = true;
  }
  if (refused)
    for (std::size_t i = 0; i < blocks.size(); ++i)
      if (states_.has_state(blocks[i])) states_.register_hashes({&blocks[i], 1}, {&hashes[i], 1});
  return refused;
}

Json SlotReplay::call(const std::string& op, const Json& args) {
  Json result;
  const bool known = call_slots(op, args, result) || call_blocks(op, args, result) || call_payload(op, args, result) ||
                     call_planner(op, args, result);
  if (!known) throw std::runtime_error("unknown op " + op);
  return result;
}

bool SlotReplay::call_slots(const std::string& op, const Json& args, Json& result) {
  if (op == "slots_alloc") {
    result = allocate_slots(args);
  } else if (op == "get_slot") {
    result = states_.slot_of(block_of(args)).value();
  } else if (op == "has_state") {
    result = states_.has_state(block_of(args));
  } else if (op == "invalidate") {
    states_.invalidate(block_of(args));
  } else if (op == "invalidate_batch") {
    states_.invalidate(blocks_of(args.at("blocks")));
  } else if (op == "hash_register") {
    states_.register_hashes(blocks_of(args.at("blocks")), args.at("hashes").get<std::vector<BlockHash>>());
  } else if (op == "on_deregistered") {
    auto hashes = args.at("hashes").get<std::vector<BlockHash>>();
    const auto blocks = blocks_of(args.at("blocks"));
    hashes.resize(blocks.size(), hash_not_computed);  // recorded as a set, which may be smaller than the list
    states_.on_blocks_deregistered(blocks, hashes);
  } else {
    return false;
  }
  return true;
}

Json SlotReplay::allocate_slots(const Json& args) {
  const auto blocks = blocks_of(args.at("blocks"));
  std::vector<SlotId> slots(blocks.size());
  states_.allocate(blocks, slots);
  // The recorded system has no tags: every state here is the one that its block asks for.
  for (const BlockId block : blocks)
    if (states_.tag(block).token_count < 0) states_.set_tag(block, {.token_count = 0});
  return ids_json(slots);
}

bool SlotReplay::call_blocks(const std::string& op, const Json& args, Json& result) {
  BlockPool& pool = blocks_.pool();
  const auto blocks = args.contains("blocks") ? blocks_of(args.at("blocks")) : std::vector<BlockId>{};
  if (op == "kv_alloc") {
    std::vector<BlockId> out(args.at("n").get<std::size_t>());
    if (!pool.allocate(out)) return true;
    blocks_.forget(out);
    result = ids_json(out);
  } else if (op == "kv_set") {
    set_blocks(args);
  } else if (op == "kv_register") {
    std::vector<BlockHash> parents;
    if (args.contains("parents") && !args.at("parents").is_null())
      parents = args.at("parents").get<std::vector<BlockHash>>();
    pool.register_hashes(blocks, args.at("hashes").get<std::vector<BlockHash>>(), parents);
  } else if (op == "kv_release") {
    pool.release(blocks);
  } else if (op == "kv_retain") {
    pool.retain(blocks);
  } else if (op == "kv_evict") {
    result = pool.evict(args.at("n").get<std::int32_t>());
  } else if (op == "kv_available") {
    result = pool.can_allocate(args.at("n").get<std::int32_t>(), static_cast<std::int32_t>(integer(args, "matched")));
  } else if (op == "reset_kv") {
    pool.reset();
  } else if (op == "tick") {
    pool.advance_tick();
    result = pool.tick();
  } else {
    return false;
  }
  return true;
}

void SlotReplay::set_blocks(const Json& args) {
  if (args.contains("hash"))
    for (const auto& [block, hash] : args.at("hash").items()) blocks_.set_hash(block_of(block), hash.get<BlockHash>());
  if (args.contains("ref"))
    for (const auto& [block, count] : args.at("ref").items())
      blocks_.set_ref_count(block_of(block), count.get<std::int32_t>());
  if (args.contains("ts"))
    for (const auto& [block, tick] : args.at("ts").items()) blocks_.set_tick(block_of(block), tick.get<std::int64_t>());
}

SlotId SlotReplay::live_slot(std::int64_t request) const {
  const auto bound = live_slots_.find(request);
  return bound != live_slots_.end() ? bound->second : SlotId{static_cast<std::int32_t>(request)};
}

bool SlotReplay::call_payload(const std::string& op, const Json& args, Json& result) {
  if (op == "bind_request") {
    live_slots_[integer(args, "request")] = SlotId{args.at("live_slot").get<std::int32_t>()};
  } else if (op == "fill_live") {
    live_.fill(args.at("live_slot").get<std::size_t>(), args);
  } else if (op == "fill_scratch") {
    scratch_.fill(args.at("i").get<std::size_t>(), args);
  } else if (op == "read_live") {
    result = live_.read(args.at("live_slot").get<std::size_t>());
  } else if (op == "store_from_live") {
    std::vector<SlotId> slots;
    std::vector<SlotId> sources;
    for (const Json& slot : args.at("slots")) slots.emplace_back(slot.get<std::int32_t>());
    for (const Json& request : args.at("requests")) sources.push_back(live_slot(request.get<std::int64_t>()));
    std::vector<SlotCopy> copies(slots.size());
    states_.store_from_live(slots, sources, copies);
    execute(copies, live_, cached_, false);
  } else if (op == "store_tensors") {
    const SlotCopy copy = states_.store_from(block_of(args), SlotId{0});
    const auto layer = args.at("layer").get<std::size_t>();
    // One layer of the plan: `fill` adds the layer's number, which a given tensor does not have.
    cached_.ssm.at(layer).at(static_cast<std::size_t>(copy.dst_slot)) = args.at("ssm").get<std::int64_t>();
    cached_.conv.at(layer).at(static_cast<std::size_t>(copy.dst_slot)) = args.at("conv").get<std::int64_t>();
  } else if (op == "restore_to_live") {
    const BlockId block = block_of(args);
    const StateTag wanted = states_.has_state(block) ? states_.tag(block) : StateTag{.token_count = 0};
    const RestorePlan restore = states_.restore_to_live(block, live_slot(integer(args, "request")), wanted);
    execute({&restore.copy, 1}, cached_, live_, false);
    result = static_cast<bool>(restore);
  } else {
    return false;
  }
  return true;
}

bool SlotReplay::call_planner(const std::string& op, const Json& args, Json& result) {
  if (op == "offsets") {
    result = plan(args);
  } else if (op == "commit") {
    result = commit();
  } else if (op == "set_batch") {
    first_prefill_ = integer(args, "paused") + integer(args, "decode");
  } else if (op == "set_row") {
    block_rows_[integer(args, "request")] = blocks_of(args.at("blocks"));
  } else {
    return false;
  }
  return true;
}

Json SlotReplay::plan(const Json& args) {
  const std::int64_t request = integer(args, "request");
  const std::vector<BlockId>& blocks = block_rows_[request];
  std::vector<PrefixHash> prefixes;
  for (const BlockId block : blocks) prefixes.push_back({{static_cast<std::uint64_t>(blocks_.hash(block)), 0}});
  const auto row = static_cast<std::int32_t>(request - first_prefill_);
  const PlannedCheckpoints planned = planner_.plan(chunk_of(args, row, live_slot(request), blocks, prefixes));
  return planned_json(planned, planner_.has_any());
}

Json SlotReplay::commit() {
  const CheckpointCommit commit = planner_.commit();
  execute(commit.from_scratch, scratch_, cached_, false);
  execute(commit.from_live, live_, cached_, false);
  planner_.publish();
  return {{"has_any", planner_.has_any()}};
}

void SlotReplay::execute(CopyPlan plan, const Payload& from, Payload& to, bool same_store) {
  validate(plan, static_cast<std::int32_t>(from.ssm[0].size()), static_cast<std::int32_t>(to.ssm[0].size()),
           same_store);
  for (const SlotCopy& copy : plan) {
    if (copy.dst_slot < 0 || copy.src_slot < 0) continue;
    const auto dst = static_cast<std::size_t>(copy.dst_slot);
    for (std::size_t layer = 0; layer < to.ssm.size(); ++layer) {
      to.conv[layer][dst] = from.conv[layer][static_cast<std::size_t>(copy.src_slot)];
      to.ssm[layer][dst] = from.ssm[layer][static_cast<std::size_t>(copy.recurrent_src_slot)];
    }
  }
}

Json SlotReplay::state(const Json& parts) const {
  Json all;
  for (const char* part : {"block_to_slot", "slot_to_block", "mamba_hash_to_block", "kv_hash_to_block", "kv_ref",
                           "kv_hash", "kv_ts", "kv_parent", "kv_children"})
    all[part] = std::string(part).ends_with("hash_to_block") ? Json::object() : Json::array();
  const BlockPool& pool = const_cast<TamperedPool&>(blocks_).pool();
  for (std::int32_t index = 0; index < pool.block_count(); ++index) {
    const BlockId block{index};
    all["block_to_slot"].push_back(states_.slot_of(block).value());
    if (states_.has_state(block) && states_.find(states_.registered_hash(block)) == block)
      all["mamba_hash_to_block"][std::to_string(states_.registered_hash(block))] = index;
    all["kv_ref"].push_back(blocks_.ref_count(block));
    all["kv_hash"].push_back(blocks_.hash(block));
    all["kv_ts"].push_back(blocks_.last_use_tick(block));
    all["kv_parent"].push_back(pool.parent(block).value());
    all["kv_children"].push_back(pool.child_count(block));
    if (pool.hash(block) > 0 && pool.find(pool.hash(block)) == block)
      all["kv_hash_to_block"][std::to_string(pool.hash(block))] = index;
  }
  for (std::int32_t slot = 0; slot < slots_.capacity_slots(); ++slot)
    all["slot_to_block"].push_back(slots_.is_free(SlotId{slot}) ? -1 : slots_.owner(SlotId{slot}));
  all["free_slots_bottom_to_top"] = ids_json(slots_.free_list());
  all["kv_free_bottom_to_top"] = ids_json(pool.free_list());
  all["ssm"] = cached_.ssm;
  all["conv"] = cached_.conv;
  Json wanted = Json::object();
  for (const auto& [part, value] : parts.items()) wanted[part] = all.contains(part) ? all.at(part) : Json("not known");
  return wanted;
}

void SlotReplay::expect_state(const Json& expected) const {
  Json safe = expected;
  if (safe.contains("mamba_hash_to_block"))
    for (const auto& [hash, block] : refused_) {
      const std::string key = std::to_string(hash);
      if (safe["mamba_hash_to_block"].contains(key) && safe["mamba_hash_to_block"][key] == block)
        safe["mamba_hash_to_block"].erase(key);
    }
  const Json got = state(safe);
  for (const auto& [part, value] : safe.items()) expect_equal(got.at(part), value, part);
}

void SlotReplay::run_safely(const Json& op) {
  const auto name = op.at("op").get<std::string>();
  const Json args = op.value("args", Json::object());
  try {
    static_cast<void>(call(name, args));
  } catch (const SlotCapacityError& refusal) {
    if (refusal.required() <= refusal.available()) throw;
  } catch (const InvalidArgument&) {
    // A refusal is safe; check_invariants() below shows that it left nothing half done.
  }
  check_invariants();
  const bool removes = name == "invalidate" || name == "invalidate_batch" || name == "on_deregistered";
  if (!removes) return;
  auto blocks = args.contains("blocks") ? blocks_of(args.at("blocks")) : std::vector<BlockId>{};
  if (args.contains("block")) blocks.push_back(block_of(args));
  // That no hash names a block without a state was part of check_invariants().
  for (const BlockId block : blocks)
    if (states_.has_state(block)) throw std::runtime_error(name + ": a block keeps its slot");
}

void SlotReplay::check_invariants() const {
  const_cast<TamperedPool&>(blocks_).pool().check_invariants();
  states_.check_invariants();
  planner_.check_invariants();
}

}  // namespace stateport::conformance
