// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/file_tier.hpp>

#include "file/file_tier_impl.hpp"
#include "file/make_file_tier.hpp"

#include <utility>

namespace stateport {

FileTier::FileTier(const FileTierOptions& options, std::vector<ImageLayout> layouts)
    : impl_(std::make_unique<Impl>(options, std::move(layouts), FileCalls::system())) {}

FileTier::FileTier(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
FileTier::FileTier(FileTier&&) noexcept = default;
FileTier& FileTier::operator=(FileTier&&) noexcept = default;
FileTier::~FileTier() = default;

bool FileTier::write(std::uint64_t ticket, std::span<const FileImage> images) {
  return impl_->write(ticket, images);
}
bool FileTier::read(std::uint64_t ticket, const ImageKey& key, std::span<std::byte> image) {
  return impl_->read(ticket, key, image);
}
bool FileTier::remove(const ImageKey& key) {
  return impl_->remove(key);
}
std::size_t FileTier::lookup(std::span<const ImageKey> keys, std::span<bool> held) const {
  return impl_->lookup(keys, held);
}
std::vector<ImageKey> FileTier::keys() const {
  return impl_->keys();
}
std::size_t FileTier::poll(std::span<Completion> completions) {
  return impl_->poll(completions);
}
void FileTier::wait_idle() const {
  impl_->wait_idle();
}
const FileTierOptions& FileTier::options() const noexcept {
  return impl_->options();
}
const FolderFindings& FileTier::findings() const noexcept {
  return impl_->findings();
}
FileTierStatistics FileTier::statistics() const {
  return impl_->statistics();
}
void FileTier::check_invariants() const {
  impl_->check_invariants();
}

FileTier make_file_tier(const FileTierOptions& options, std::vector<ImageLayout> layouts, FileCalls& calls) {
  return FileTier(std::make_unique<FileTier::Impl>(options, std::move(layouts), calls));
}

}  // namespace stateport
