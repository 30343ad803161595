// SPDX-License-Identifier: Apache-2.0
#include "c_device_world.hpp"

#include <stdlib.h>

#include <filesystem>
#include <system_error>

namespace stateport::fuzz {
namespace {

constexpr std::size_t store_bytes_max = std::size_t{128} << 10;
constexpr std::size_t lasting_bytes_max = std::size_t{4} << 20;
constexpr std::size_t kept_bytes_max = std::size_t{32} << 10;

constexpr KindCalls device_kinds[] = {
    {Kind::runtime, call_on<stateport_runtime, stateport_runtime_destroy>},
    {Kind::store, call_on<stateport_store, stateport_store_destroy>},
    {Kind::copier, call_on<stateport_copier, stateport_copier_destroy>},
    {Kind::resharder, call_on<stateport_resharder, stateport_resharder_destroy>},
    {Kind::committer, call_on<stateport_step_committer, stateport_step_committer_destroy>},
    {Kind::device_align, call_on<stateport_align, stateport_align_destroy>},
    {Kind::tiers, call_on<stateport_state_tiers, stateport_state_tiers_destroy>,
     call_on<stateport_state_tiers, stateport_state_tiers_check>},
    {Kind::files, call_on<stateport_file_tier, stateport_file_tier_destroy>,
     call_on<stateport_file_tier, stateport_file_tier_check>},
    {Kind::objects, call_on<stateport_remote_objects, stateport_remote_objects_destroy>},
    {Kind::remote, call_on<stateport_remote_store, stateport_remote_store_destroy>},
    {Kind::handover, call_on<stateport_handover_end, stateport_handover_end_destroy>},
    {Kind::elastic_memory, call_on<stateport_elastic_memory, stateport_elastic_memory_destroy>},
    {Kind::memory_mover, call_on<stateport_memory_mover, stateport_memory_mover_destroy>}};

/// Of the process, for the folders of inputs.
struct Place {
  Place() {
    std::string name = (std::filesystem::temp_directory_path() / "stateport-fuzz-XXXXXX").string();
    expect(::mkdtemp(name.data()) != nullptr, "a folder can be made");
    path = name;
  }
  ~Place() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  std::filesystem::path path;
};

const Place& place() {
  static const Place instance;
  return instance;
}

}  // namespace

void start_device() {
  static stateport_runtime* runtime = nullptr;
  if (runtime != nullptr) return;
  const stateport_runtime_options options = {
      .size = sizeof options, .device_id = STATEPORT_ANY_DEVICE, .host_threads = 1};
  expect(stateport_runtime_create(&options, &runtime) == STATEPORT_OK, "the runtime starts");
  static_cast<void>(place());
}

DeviceWorld::DeviceWorld(ByteSource source) : World(source, device_kinds) {}

DeviceWorld::~DeviceWorld() {
  end();
  expect(allocations_.empty(), "stores give back their memory");
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(place().path / "input", ignored);
}

std::byte* DeviceWorld::lasting(std::size_t bytes, std::byte fill) {
  if (bytes > lasting_bytes_max - lasting_bytes_) return nullptr;
  lasting_bytes_ += bytes;
  lasting_.push_back(std::make_unique<std::byte[]>(bytes));
  std::fill_n(lasting_.back().get(), bytes, fill);
  return lasting_.back().get();
}

void DeviceWorld::keep_stores() {
  if (allocated_bytes_ > kept_bytes_max) return;
  for (const auto& [memory, allocation] : allocations_) keep(memory, allocation.bytes);
}

void* DeviceWorld::allocate(std::size_t bytes, std::size_t alignment, void*, void* context) {
  auto& world = *static_cast<DeviceWorld*>(context);
  if (bytes > store_bytes_max) return nullptr;
  void* memory = nullptr;
  if (::posix_memalign(&memory, std::max(alignment, sizeof(void*)), bytes) != 0) return nullptr;
  std::memset(memory, 0x5A, bytes);
  world.allocations_[memory] = {bytes, alignment};
  world.allocated_bytes_ += bytes;
  return memory;
}

void DeviceWorld::deallocate(void* memory, std::size_t bytes, std::size_t alignment, void*, void* context) {
  auto& world = *static_cast<DeviceWorld*>(context);
  const auto found = world.allocations_.find(memory);
  expect(found != world.allocations_.end(), "a store gives back memory that it took");
  expect(found->second.bytes == bytes && found->second.alignment == alignment, "as it took it");
  world.allocated_bytes_ -= bytes;
  world.allocations_.erase(found);
  std::free(memory);
}

void* DeviceWorld::stream() {
  return input.chance(1) ? reinterpret_cast<void*>(input.take<std::uintptr_t>()) : nullptr;
}

std::int32_t DeviceWorld::slot() {
  const std::uint8_t choice = input.take();
  if (choice < 232) return choice % 6;
  return choice < 244 ? -1 : number();
}

stateport_slot_copy* DeviceWorld::copies(std::size_t& count) {
  count = input.below(input.chance(16) ? 80 : 4);
  auto* const all = room<stateport_slot_copy>(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t source = slot();
    all[i] = {source, slot(), input.chance(64) ? number() % 5 : 0, input.chance(32) ? slot() : source};
    if (input.chance(4)) all[i].conv_shift = number();
  }
  if (!input.chance(6)) return all;
  count = input.chance(128) ? 0 : strange_count();
  return nullptr;
}

stateport_shard DeviceWorld::shard() {
  constexpr stateport_shard usual[] = {{}, {0, 2, 0, 2}, {0, 2, 1, 2}, {0, 1, 0, 1}, {1, 2, 0, 1}, {0, 2, 0, 1}};
  if (!input.chance(24)) return usual[input.below(6)];
  return {number(), number(), number(), number()};
}

stateport_image_key DeviceWorld::key() {
  stateport_image_key result = {{input.below(4), 0}, input.below(3), STATEPORT_STATE, 0};
  if (input.chance(32)) result.content = STATEPORT_KV_BLOCK;
  if (!input.chance(24)) return result;
  result.prefix[1] = input.take<std::uint64_t>();
  result.tokens = wide_number();
  result.content = number() % 4;
  result.group = number();
  return result;
}

stateport_image_key* DeviceWorld::keys(std::size_t& count) {
  count = input.below(4);
  auto* const all = room<stateport_image_key>(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = key();
  if (!input.chance(6)) return all;
  count = input.chance(128) ? 0 : strange_count();
  return nullptr;
}

const char* DeviceWorld::folder() {
  const auto home = place().path / "input";
  std::error_code ignored;
  std::filesystem::create_directory(home, ignored);
  const std::uint8_t choice = input.take();
  if (choice < 4) return nullptr;
  if (choice < 6) return "";
  folder_ = (home / (choice < 200 ? "a" : choice < 240 ? "b" : choice < 250 ? "a/b/c" : "a/x")).string();
  char* const text = room<char>(folder_.size() + 1);
  std::memcpy(text, folder_.c_str(), folder_.size() + 1);
  return text;
}

const void* DeviceWorld::model(std::size_t& bytes) {
  if (input.chance(8)) return text(bytes);
  bytes = 1;
  return input.chance(16) ? "n" : "m";
}

namespace {

constexpr std::int64_t window = 4;
constexpr std::int64_t dim = 8;
constexpr std::int64_t heads = 2;

std::vector<stateport_tensor_spec> small_tensors(World& world) {
  constexpr std::int32_t types[] = {STATEPORT_FP32, STATEPORT_FP16, STATEPORT_BF16, STATEPORT_INT8_BLOCK32};
  const std::int32_t conv_type = types[world.input.below(3)];
  const std::int32_t recurrent_type = types[world.input.below(4)];
  const std::int32_t conv_layout = world.flag();
  const bool padded = world.input.chance(32);
  std::vector<stateport_tensor_spec> tensors;
  for (std::int32_t layer = 0; layer < 2; ++layer) {
    stateport_tensor_spec tensor = {};
    tensor.size = sizeof tensor;
    tensor.layer = layer;
    tensor.type = conv_type;
    tensor.conv_layout = conv_layout;
    tensor.shape[0] = window;
    tensor.shape[1] = dim;
    tensor.shape[2] = 1;
    if (padded) tensor.token_stride = dim + 3, tensor.channel_stride = 1;
    tensors.push_back(tensor);
    tensor.kind = STATEPORT_RECURRENT;
    tensor.type = recurrent_type;
    tensor.conv_layout = 0;
    tensor.token_stride = tensor.channel_stride = 0;
    tensor.shape[0] = heads;
    tensor.shape[1] = 3;
    tensor.shape[2] = world.input.chance(8) ? 1 + world.input.below(70) : 5;
    tensors.push_back(tensor);
  }
  return tensors;
}

}  // namespace

stateport_spec* DeviceWorld::small_spec() {
  const auto tensors = small_tensors(*this);
  stateport_spec* spec = nullptr;
  expect(stateport_spec_create(tensors.data(), tensors.size(), &spec) == STATEPORT_OK, "a small spec");
  add(Kind::spec, spec);
  return spec;
}

stateport_model_layout* DeviceWorld::small_layout() {
  const stateport_split_band conv = {dim, static_cast<std::int32_t>(heads), 0};
  const stateport_split_band recurrent = {heads, static_cast<std::int32_t>(heads), 0};
  const stateport_tensor_split splits[] = {
      {&conv, 1, 1, 0}, {&recurrent, 1, 0, 0}, {&conv, 1, 1, 0}, {&recurrent, 1, 0, 0}};
  stateport_spec* const whole = small_spec();
  stateport_model_layout* layout = nullptr;
  if (stateport_model_layout_create(whole, splits, std::size(splits), &layout) != STATEPORT_OK) return nullptr;
  add(Kind::layout, layout);
  return layout;
}

stateport_store* make_store(DeviceWorld& world, stateport_spec* spec, std::int32_t slots) {
  stateport_store_options options = {};
  options.size = sizeof options;
  options.slots = slots;
  options.layout = world.flag();
  options.allocate = &DeviceWorld::allocate;
  options.deallocate = &DeviceWorld::deallocate;
  options.context = &world;
  stateport_store* store = nullptr;
  if (stateport_store_create(spec, &options, nullptr, &store) == STATEPORT_OK) world.add(Kind::store, store);
  return store;
}

}  // namespace stateport::fuzz
