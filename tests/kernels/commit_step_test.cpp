// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/step_committer.hpp>

#include "launch_recorder.hpp"
#include "slot_kernels.hpp"
#include "store_image.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace stateport;
using test::Random;
using Int32s = std::vector<std::int32_t>;

namespace {

Buffer to_device(DeviceResource& resource, const void* data, std::size_t bytes) {
  Buffer buffer(resource, std::max<std::size_t>(bytes, 1));
  copy_bytes(Stream::default_stream(), buffer.data(), data, bytes);
  Stream::default_stream().synchronize();
  return buffer;
}

/// Scratch of one tensor on the host: requests × steps states, or one overlapping strip per request.
struct HostScratch {
  std::vector<std::byte> bytes;
  StepScratch layout;
};

HostScratch draw_scratch(Random& random, const StateTensorSpec& spec, std::int32_t requests, std::int32_t steps) {
  constexpr ElementType types[] = {ElementType::fp32, ElementType::fp16, ElementType::bf16};
  HostScratch scratch;
  const ElementType type = convertible(spec.type) && random.chance(50) ? types[random.between(0, 2)] : spec.type;
  const auto element = static_cast<std::int64_t>(element_bytes(type));
  const std::int64_t strip_tokens = spec.window() + steps - 1;
  if (spec.kind == StateKind::conv && random.chance(60)) {
    scratch.layout = StepScratch::strip(nullptr, type, strip_tokens, spec.dim(), random.chance(50));
  } else {
    const bool channel_major = random.chance(50);
    const std::int64_t step = (spec.element_count() + random.between(0, 5)) * element;
    scratch.layout = {nullptr, step * steps, step, channel_major ? 1 : spec.dim(), channel_major ? spec.window() : 1,
                      type};
  }
  scratch.layout.request_stride_bytes += random.between(0, 3) * element;
  scratch.bytes.resize(static_cast<std::size_t>(scratch.layout.request_stride_bytes * requests));
  for (std::byte& byte : scratch.bytes) byte = static_cast<std::byte>(random.bits());
  return scratch;
}

void commit_serially(test::StoreImage& image, const std::vector<HostScratch>& scratch, std::int32_t steps,
                     const Int32s& step, const Int32s& slot) {
  for (std::size_t row = 0; row < step.size(); ++row) {
    if (step[row] < 0 || step[row] >= steps || slot[row] < 0 || slot[row] >= image.slots()) continue;
    for (std::size_t i = 0; i < image.tensor_count(); ++i) {
      const StateTensorSpec& spec = image.tensor(i);
      const StepScratch& from = scratch[i].layout;
      const std::byte* state = scratch[i].bytes.data() + static_cast<std::int64_t>(row) * from.request_stride_bytes +
                               step[row] * from.step_stride_bytes;
      const bool conv = spec.kind == StateKind::conv;
      for (std::int64_t t = 0; t < (conv ? spec.window() : 1); ++t)
        for (std::int64_t c = 0; c < (conv ? spec.dim() : spec.element_count()); ++c) {
          const std::int64_t in = conv ? t * from.token_stride + c * from.channel_stride : c;
          const std::int64_t out = conv ? test::reference::element_index(spec, t, c) : c;
          const std::byte* s = state + in * static_cast<std::int64_t>(element_bytes(from.type));
          std::byte* d = image.slot(i, slot[row]) + out * static_cast<std::int64_t>(element_bytes(spec.type));
          if (from.type == spec.type)
            std::memcpy(d, s, element_bytes(spec.type));
          else
            test::reference::store(d, spec.type, test::reference::load(s, from.type));
        }
    }
  }
}

}  // namespace

TEST_CASE("chosen steps reach their live and checkpoint slots, from states and from strips") {
  test::for_each_seed(600, [](Random& random, std::uint64_t) {
    const Stream stream = Stream::default_stream();
    DeviceResource resource;
    const StateSpec spec = test::random_spec(random, test::SpecUse::live);
    const std::int32_t requests = random.between32(1, 4);
    const std::int32_t steps = random.between32(1, 5);
    test::StoreImage image(random, spec, {.slots = 2 * requests + 1});
    const StateStore store = image.upload(stream);
    std::vector<HostScratch> scratch;
    std::vector<Buffer> memory;
    std::vector<StepScratch> layouts;
    for (const StateTensorSpec& tensor : spec.tensors()) {
      scratch.push_back(draw_scratch(random, tensor, requests, steps));
      memory.push_back(to_device(resource, scratch.back().bytes.data(), scratch.back().bytes.size()));
      layouts.push_back(scratch.back().layout);
      layouts.back().base = memory.back().as<std::byte>();
    }
    StepCommitter committer(layouts, store, requests, steps);
    const auto rows = static_cast<std::size_t>(random.between(0, requests));
    Int32s step[2], slot[2];
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t target = 0; target < 2; ++target) {
        const auto own = static_cast<std::int32_t>(2 * row + target);
        step[target].push_back(random.between32(-2, steps));
        slot[target].push_back(random.chance(80) ? own : random.chance(50) ? -1 : image.slots());
      }
    Buffer arrays[4];
    for (std::size_t target = 0; target < 2; ++target) {
      arrays[target] = to_device(resource, step[target].data(), rows * sizeof(std::int32_t));
      arrays[2 + target] = to_device(resource, slot[target].data(), rows * sizeof(std::int32_t));
    }
    const bool tracks = random.chance(70);
    StepTargets targets{.last_step = arrays[0].as<std::int32_t>(),
                        .live_slot = arrays[2].as<std::int32_t>(),
                        .rows = static_cast<std::int32_t>(rows)};
    if (tracks) {
      targets.track_step = arrays[1].as<std::int32_t>();
      targets.track_slot = arrays[3].as<std::int32_t>();
    }
    const test::LaunchRecorder recorder;
    committer.commit_step(stream, targets);
    REQUIRE(recorder.record().launches.size() == (rows > 0 ? 1 : 0));
    REQUIRE(recorder.record().fences + recorder.record().allocations == 0);
    commit_serially(image, scratch, steps, step[0], slot[0]);
    if (tracks) commit_serially(image, scratch, steps, step[1], slot[1]);
    REQUIRE(image.matches_device(stream));
  });
}

TEST_CASE("a step committer refuses scratch and arrays that do not fit") {
  const Stream stream = Stream::default_stream();
  DeviceResource resource;
  const StateStore store(resource, StateSpec::uniform(1, {.window = 3, .dim = 4}, {.shape = {2, 2, 2}}), {.slots = 4});
  Buffer memory(resource, 4096);
  const std::byte* const base = memory.as<std::byte>();
  const StepScratch conv = StepScratch::strip(base, ElementType::bf16, 5, 4, true);
  const StepScratch recurrent{.base = base, .request_stride_bytes = 96, .step_stride_bytes = 32};
  const auto refused = [&](std::vector<StepScratch> scratch, std::int32_t requests, std::int32_t steps) {
    CHECK_THROWS_AS(StepCommitter(scratch, store, requests, steps), InvalidArgument);
  };
  refused({conv}, 2, 3);
  refused({conv, recurrent}, 0, 3);
  refused({conv, recurrent}, 2, 0);
  const auto changed = [](StepScratch scratch, auto&& change) {
    change(scratch);
    return scratch;
  };
  refused({changed(conv, [](StepScratch& s) { s.base = nullptr; }), recurrent}, 2, 3);
  refused({changed(conv, [](StepScratch& s) { s.token_stride = 0; }), recurrent}, 2, 3);
  refused({changed(conv, [](StepScratch& s) { s.channel_stride = 0; }), recurrent}, 2, 3);
  refused({changed(conv, [](StepScratch& s) { s.type = ElementType::int8; }), recurrent}, 2, 3);
  refused({conv, changed(recurrent, [](StepScratch& s) { s.type = ElementType::int8_block32; })}, 2, 3);
  refused({conv, changed(recurrent, [](StepScratch& s) { s.step_stride_bytes = 33; })}, 2, 3);
  refused({conv, changed(recurrent, [](StepScratch& s) { s.request_stride_bytes = -4; })}, 2, 3);
  const StateStore checkpoints(resource, quantised(store.spec(), ElementType::int8_block32), {.slots = 4});
  CHECK_THROWS_AS(StepCommitter(std::vector{conv, recurrent}, checkpoints, 2, 3), InvalidArgument);
  StepCommitter committer(std::vector{conv, recurrent}, store, 2, 3);
  const auto* const ids = memory.as<std::int32_t>();
  CHECK_THROWS_AS(committer.commit_step(stream, {ids, ids, nullptr, nullptr, 3}), InvalidArgument);
  CHECK_THROWS_AS(committer.commit_step(stream, {ids, ids, nullptr, nullptr, -1}), InvalidArgument);
  CHECK_THROWS_AS(committer.commit_step(stream, {nullptr, ids, nullptr, nullptr, 1}), InvalidArgument);
  CHECK_THROWS_AS(committer.commit_step(stream, {ids, ids, ids, nullptr, 1}), InvalidArgument);
}
