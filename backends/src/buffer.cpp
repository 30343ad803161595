// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/buffer.hpp>

namespace stateport {

Buffer::Buffer(MemoryResource& resource, std::size_t bytes, std::size_t alignment)
    : Buffer(resource, bytes, alignment, Stream::default_stream()) {}

Buffer::Buffer(MemoryResource& resource, std::size_t bytes, std::size_t alignment, const Stream& stream)
    : resource_(&resource),
      data_(resource.allocate(bytes, alignment, stream)),
      bytes_(bytes),
      alignment_(alignment),
      stream_(stream) {}

void Buffer::reset() noexcept {
  if (data_ != nullptr) resource_->deallocate(data_, bytes_, alignment_, *stream_);
  data_ = nullptr;
  bytes_ = 0;
}

void Buffer::swap(Buffer& other) noexcept {
  std::swap(resource_, other.resource_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(alignment_, other.alignment_);
  std::swap(stream_, other.stream_);
}

}  // namespace stateport
