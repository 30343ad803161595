// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

namespace stateport {

namespace detail {
struct StreamState;
}

/// An ordered queue of work on the build's device: an engine's native stream (cudaStream_t, hipStream_t), or one of
/// its own. A cheap value: copies name the same stream. Each native stream has one execution-space instance, made when
/// the stream is first seen, so that launching on it allocates nothing.
///
/// In an OpenMP build work is done when the call that enqueues it returns, and a native stream is always nullptr.
///
/// Thread-safe: work that several threads enqueue runs in the order of their calls. A stream still alive when the
/// device runtime ends is inert: naming it is fine, enqueuing on it throws BackendError.
class Stream {
 public:
  /// The stream that the device runtime uses by default. All of these throw BackendError unless a Runtime is alive.
  [[nodiscard]] static Stream default_stream();
  /// A new stream, not ordered with any other. It is destroyed after its work, once no Stream names it any more.
  [[nodiscard]] static Stream create();
  /// The engine's own stream, which must live until forget_native is called for it or the runtime ends. nullptr is the
  /// vendor's default stream. Allocates only the first time that a native stream is seen, which must not be while it
  /// captures a graph. Throws InvalidArgument for a stream of another device than the one in use, and for one other
  /// than nullptr in an OpenMP build.
  [[nodiscard]] static Stream from_native(void* native);
  /// Drops the resources that this library keeps for an engine's stream. Call it, with no Stream naming it in use,
  /// before destroying the stream.
  static void forget_native(void* native) noexcept;

  // Copied even where it could be moved: a Stream always names a stream.
  Stream(const Stream&) noexcept = default;
  Stream& operator=(const Stream&) noexcept = default;

  /// The cudaStream_t or hipStream_t; nullptr in an OpenMP build.
  [[nodiscard]] void* native() const noexcept;

  /// Waits until everything enqueued so far is done. Throws BackendError when that work failed.
  void synchronize() const;

  /// True when both name the same stream.
  friend bool operator==(const Stream&, const Stream&) noexcept = default;

  /// For the kernels of this library.
  [[nodiscard]] const detail::StreamState& state() const noexcept { return *state_; }

 private:
  explicit Stream(std::shared_ptr<const detail::StreamState> state) noexcept : state_(std::move(state)) {}

  std::shared_ptr<const detail::StreamState> state_;
};

}  // namespace stateport
