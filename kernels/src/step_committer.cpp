// SPDX-License-Identifier: Apache-2.0
#include <stateport/kernels/step_committer.hpp>

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/internal/execution_space.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core/align/speculative_rules.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/state_store.hpp>

#include "byte_copy.hpp"
#include "element_copy.hpp"
#include "enqueue.hpp"

#include <vector>

namespace stateport {
namespace {

/// Neighbouring destination elements that one thread moves.
constexpr std::uint64_t unit_elements = 16;

/// One tensor as the kernel sees it.
struct StepRoute {
  StepScratch scratch;
  std::byte* dst = nullptr;
  std::int64_t dst_stride_bytes = 0;
  /// Elements of a conv state are counted in the order of the destination's memory: `inner` of them, one behind the
  /// other but for their strides, make a row.
  std::int64_t inner = 1;
  std::int64_t src_inner_stride = 1;
  std::int64_t src_outer_stride = 1;
  std::int64_t dst_inner_stride = 1;
  std::int64_t dst_outer_stride = 1;
  std::uint64_t elements = 0;
  std::uint64_t first_unit = 0;  ///< units of a slot that lie before this tensor
  ElementType type = ElementType::fp32;
  StateKind kind = StateKind::recurrent;

  [[nodiscard]] constexpr std::int64_t src_place(std::uint64_t i) const noexcept {
    return place(i, src_inner_stride, src_outer_stride);
  }
  [[nodiscard]] constexpr std::int64_t dst_place(std::uint64_t i) const noexcept {
    return place(i, dst_inner_stride, dst_outer_stride);
  }
  [[nodiscard]] constexpr std::int64_t place(std::uint64_t i, std::int64_t inner_stride,
                                             std::int64_t outer_stride) const noexcept {
    const auto element = static_cast<std::int64_t>(i);
    return kind == StateKind::recurrent ? element : element / inner * outer_stride + element % inner * inner_stride;
  }
  /// Whether elements [first, last) lie one behind the other on both sides.
  [[nodiscard]] constexpr bool contiguous(std::uint64_t first, std::uint64_t last) const noexcept {
    if (kind == StateKind::recurrent) return true;
    const auto row = static_cast<std::uint64_t>(inner);
    return src_inner_stride == 1 && dst_inner_stride == 1 && first / row == (last - 1) / row;
  }
};

struct CommitStep {
  const StepRoute* routes;
  std::uint32_t route_count;
  std::uint64_t slot_units;
  std::int32_t slots;
  std::int32_t steps;
  StepTargets targets;

  KOKKOS_FUNCTION const StepRoute& route_of(std::uint64_t unit) const {
    std::uint32_t low = 0;
    for (std::uint32_t high = route_count; high - low > 1;) {
      const std::uint32_t middle = (low + high) / 2;
      (routes[middle].first_unit <= unit ? low : high) = middle;
    }
    return routes[low];
  }

  KOKKOS_FUNCTION void operator()(std::uint64_t item) const {
    const std::uint64_t entry = item / slot_units;
    const auto rows = static_cast<std::uint64_t>(targets.rows);
    const bool live = entry < rows;
    const std::uint64_t row = live ? entry : entry - rows;
    const std::int32_t step = live ? targets.last_step[row] : targets.track_step[row];
    const std::int32_t slot = live ? targets.live_slot[row] : targets.track_slot[row];
    if (!commits(step, slot, slots) || step >= steps) return;
    const StepRoute& route = route_of(item % slot_units);
    const std::byte* const src = route.scratch.base +
                                 static_cast<std::int64_t>(row) * route.scratch.request_stride_bytes +
                                 step * route.scratch.step_stride_bytes;
    std::byte* const dst = route.dst + slot * route.dst_stride_bytes;
    const std::uint64_t first = (item % slot_units - route.first_unit) * unit_elements;
    const std::uint64_t last = first + unit_elements < route.elements ? first + unit_elements : route.elements;
    const auto dst_bytes = static_cast<std::int64_t>(element_bytes(route.type));
    const auto src_bytes = static_cast<std::int64_t>(element_bytes(route.scratch.type));
    if (route.type == route.scratch.type && route.contiguous(first, last))
      return kernels::copy_bytes_by_lanes(
          0, 1, dst + route.dst_place(first) * dst_bytes, src + route.src_place(first) * src_bytes,
          static_cast<std::uint32_t>(last - first) * static_cast<std::uint32_t>(dst_bytes));
    for (std::uint64_t i = first; i < last; ++i) {
      const std::byte* const from = src + route.src_place(i) * src_bytes;
      std::byte* const to = dst + route.dst_place(i) * dst_bytes;
      if (route.type == route.scratch.type)
        kernels::copy_element(to, from, static_cast<std::uint64_t>(dst_bytes));
      else
        kernels::convert_range(0, 1, to, route.type, from, route.scratch.type, 1);
    }
  }
};
void validate(const StepScratch& scratch, const StateTensorSpec& tensor) {
  require(scratch.base != nullptr, "base", "nullptr", "must point to the scratch of request 0, step 0");
  detail::require_reachable(scratch.base, "base");
  require(scratch.type == tensor.type || (convertible(scratch.type) && convertible(tensor.type)), "type",
          name(scratch.type), "cannot be converted to the destination's element type");
  const auto bytes = static_cast<std::int64_t>(element_bytes(scratch.type));
  for (const std::int64_t stride : {scratch.request_stride_bytes, scratch.step_stride_bytes})
    require(stride >= 0 && stride % bytes == 0, "stride", stride, "must be a whole number of elements");
  if (tensor.kind == StateKind::recurrent) return;
  require(scratch.token_stride >= 1, "token_stride", scratch.token_stride, "must be at least 1");
  require(scratch.channel_stride >= 1, "channel_stride", scratch.channel_stride, "must be at least 1");
}

void add_conv(StepRoute& route, const StateTensorSpec& spec) {
  const ConvStrides strides = spec.conv_strides();
  const bool token_inner = strides.token < strides.channel;
  route.inner = token_inner ? spec.window() : spec.dim();
  route.src_inner_stride = token_inner ? route.scratch.token_stride : route.scratch.channel_stride;
  route.src_outer_stride = token_inner ? route.scratch.channel_stride : route.scratch.token_stride;
  route.dst_inner_stride = token_inner ? strides.token : strides.channel;
  route.dst_outer_stride = token_inner ? strides.channel : strides.token;
}

std::vector<StepRoute> routes_of(std::span<const StepScratch> scratch, const StateStore& destination) {
  require(scratch.size() == destination.tensors().size(), "scratch", scratch.size(),
          "must have one entry per tensor of the destination");
  std::vector<StepRoute> routes;
  std::uint64_t units = 0;
  for (std::size_t i = 0; i < scratch.size(); ++i) {
    const StateTensorView& tensor = destination.tensors()[i];
    validate(scratch[i], tensor.spec);
    detail::require_reachable(tensor.base, "destination");
    const auto elements = static_cast<std::uint64_t>(tensor.spec.element_count());
    routes.push_back({.scratch = scratch[i],
                      .dst = tensor.base,
                      .dst_stride_bytes = tensor.slot_stride_bytes,
                      .elements = elements,
                      .first_unit = units,
                      .type = tensor.spec.type,
                      .kind = tensor.spec.kind});
    if (tensor.spec.kind == StateKind::conv) add_conv(routes.back(), tensor.spec);
    units += (elements + unit_elements - 1) / unit_elements;
  }
  return routes;
}

}  // namespace

class StepCommitter::Impl {
 public:
  Impl(std::span<const StepScratch> scratch, const StateStore& destination, std::int32_t request_count,
       std::int32_t step_count)
      : requests(request_count) {
    require(requests >= 1, "requests", requests, "must be at least 1");
    require(step_count >= 1, "steps", step_count, "must be at least 1");
    const std::vector<StepRoute> host = routes_of(scratch, destination);
    const Stream stream = Stream::default_stream();
    routes = Buffer(resource, host.size() * sizeof(StepRoute));
    copy_bytes(stream, routes.data(), host.data(), host.size() * sizeof(StepRoute));
    stream.synchronize();
    const StepRoute& last = host.back();
    kernel = {.routes = routes.as<StepRoute>(),
              .route_count = static_cast<std::uint32_t>(host.size()),
              .slot_units = last.first_unit + (last.elements + unit_elements - 1) / unit_elements,
              .slots = destination.slots(),
              .steps = step_count,
              .targets = {}};
    prepare(stream);
  }
  /// Streams of the engine may still read the routes.
  ~Impl() { detail::wait_for_device(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// A launch without work: the first one of a source file makes Kokkos copy tables to the device and wait, which must
  /// not happen while a graph is captured.
  void prepare(const Stream& stream) const {
    DeviceResource memory;
    constexpr std::int32_t nothing = -1;
    Buffer none(memory, sizeof nothing);
    copy_bytes(stream, none.data(), &nothing, sizeof nothing);
    CommitStep commit = kernel;
    commit.targets = {.last_step = none.as<std::int32_t>(), .live_slot = none.as<std::int32_t>(), .rows = 1};
    enqueue(kernels::labels::prepare, stream, commit, 1);
    stream.synchronize();
  }

  static void enqueue(const char* label, const Stream& stream, const CommitStep& commit, std::uint64_t items) {
    kernels::enqueue(label,
                     Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::uint64_t>, kernels::ArgumentsByValue>(
                         execution_space(stream), 0, items),
                     commit);
  }

  std::int32_t requests;
  DeviceResource resource;
  Buffer routes;
  CommitStep kernel{};
};

StepCommitter::StepCommitter(std::span<const StepScratch> scratch, const StateStore& destination, std::int32_t requests,
                             std::int32_t steps)
    : impl_(std::make_unique<Impl>(scratch, destination, requests, steps)) {}
StepCommitter::StepCommitter(StepCommitter&&) noexcept = default;
StepCommitter& StepCommitter::operator=(StepCommitter&&) noexcept = default;
StepCommitter::~StepCommitter() = default;

void StepCommitter::commit_step(const Stream& stream, const StepTargets& targets) {
  require(targets.rows >= 0 && targets.rows <= impl_->requests, "rows", targets.rows,
          "must be between 0 and the scratch's requests");
  if (targets.rows == 0) return;
  require(targets.last_step != nullptr && targets.live_slot != nullptr, "last_step", "nullptr",
          "last_step and live_slot must point to rows entries");
  require((targets.track_step == nullptr) == (targets.track_slot == nullptr), "track_step", "nullptr",
          "track_step and track_slot come together");
  CommitStep kernel = impl_->kernel;
  kernel.targets = targets;
  const std::uint64_t entries = static_cast<std::uint64_t>(targets.rows) * (targets.track_step != nullptr ? 2 : 1);
  Impl::enqueue(kernels::labels::commit_step, stream, kernel, entries * kernel.slot_units);
}

}  // namespace stateport
