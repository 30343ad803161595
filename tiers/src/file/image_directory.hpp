// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/image.hpp>

#include "containers/flat_map.hpp"
#include "file/file_calls.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stateport {

struct ImageKeyHash {
  [[nodiscard]] std::size_t operator()(const ImageKey& key) const noexcept {
    // Engines without hashes of their own may count in the words: each field is spread over all bits.
    std::uint64_t hash = 0;
    for (const std::uint64_t field : {key.prefix.words[0], key.prefix.words[1], static_cast<std::uint64_t>(key.tokens),
                                      static_cast<std::uint64_t>(key.content), static_cast<std::uint64_t>(key.group)}) {
      hash = (hash ^ field) * 0x9e3779b97f4a7c15;
      hash ^= hash >> 32;
    }
    return static_cast<std::size_t>(hash);
  }
};

/// Number of a file in an ImageDirectory; used again after the file is gone.
using FileIndex = std::int32_t;

/// Which image lies where, and which of its bytes are still in use. No input or output, not thread-safe.
///
/// A file is made by add_file, gets its images, and is settled. From then on it is at every moment in one of these
/// states, and `tidy` work is due in those marked with *:
///
///     images   removed ranges   readers
///     some     none             any        whole
///     some     some             some       waits for its readers
///     some     some             none     * punched, then whole
///     none     any              some       waits for its readers
///     none     any              none     * removed, or forgotten if it has foreign images
class ImageDirectory {
 public:
  /// `punches_holes`: whether a removed image's bytes are given back before those of its file.
  explicit ImageDirectory(bool punches_holes) : punches_holes_(punches_holes) {}

  struct Place {
    FileIndex file = -1;
    const ImageLayout* layout = nullptr;
    std::uint64_t offset = 0;
  };

  /// The name of a file that comes, and room for the ranges that are removed from it.
  struct NewFile {
    NewFile() = default;
    NewFile(std::string file_name, std::size_t images);
    std::shared_ptr<const std::string> name;
    std::vector<FileRange> room;
  };
  /// Makes room for this number of files and images. Adding them, and all later calls about them, do not allocate.
  void reserve(std::size_t files, std::size_t images);
  /// A new file with `bytes`, of which `hole_bytes` were given back before. `foreign`: it holds images of others, and
  /// is never removed. Precondition: reserve().
  FileIndex add_file(NewFile file, std::uint64_t bytes, std::uint64_t hole_bytes, bool foreign) noexcept;
  /// An image of a file that is not settled. Returns the file that held the image until now, which has lost it, or -1.
  /// Precondition: reserve().
  FileIndex add_image(FileIndex file, const ImageKey& key, const ImageLayout& layout, std::uint64_t offset) noexcept;
  /// An image of a file that is not settled, which was removed before the file was there. The same image may lie in
  /// another file, and stays there. Precondition: reserve().
  void add_removed(FileIndex file, const ImageLayout& layout, std::uint64_t offset) noexcept;

  [[nodiscard]] const Place* find(const ImageKey& key) const;
  [[nodiscard]] const std::string& name(FileIndex file) const { return *files_[at(file)].name; }
  /// False: not held.
  bool remove(const ImageKey& key) noexcept;
  /// As remove, if the image still lies in `file`: another may have come in its place.
  void remove(const ImageKey& key, FileIndex file) noexcept;
  /// The image in `file` is another one's: it is not held any more, and its bytes and the file are left alone.
  void disown(const ImageKey& key, FileIndex file) noexcept;

  void add_reader(FileIndex file) { ++files_[at(file)].readers; }
  void drop_reader(FileIndex file) { --files_[at(file)].readers; }

  /// The work to be done on a file.
  struct Tidy {
    FileIndex file = -1;
    std::shared_ptr<const std::string> name;
    bool unlink = false;
    std::span<const FileRange> holes;  ///< until it is finished
  };
  /// The work that is due for a file, which then counts as begun; nothing if none is. To be asked after settling,
  /// removing, dropping a reader and finishing.
  [[nodiscard]] std::optional<Tidy> begin_tidy(FileIndex file) noexcept;
  void finish_tidy(const Tidy& tidy) noexcept;

  /// A file that got holes.
  struct Holed {
    FileIndex file = -1;
    std::shared_ptr<const std::string> name;
  };
  /// The files that got holes since the last call. O(files).
  [[nodiscard]] std::vector<Holed> take_holed();
  /// Names the files again in the next take_holed(), but for those that have gone.
  void put_back(std::span<const Holed> files) noexcept;
  /// At least as many as there are files: at most one piece of work of each is begun.
  [[nodiscard]] std::size_t files() const noexcept { return files_.size(); }

  [[nodiscard]] std::size_t images() const noexcept { return places_.size(); }
  /// Of files that hold images, without holes.
  [[nodiscard]] std::uint64_t held_bytes() const noexcept { return held_bytes_; }
  [[nodiscard]] std::vector<ImageKey> keys() const;
  void check_invariants() const;

 private:
  struct File {
    std::shared_ptr<const std::string> name;
    std::uint64_t bytes = 0;
    std::uint64_t given_back_bytes = 0;  ///< holes, and ranges that will be
    std::int32_t images = 0;
    std::int32_t readers = 0;
    bool foreign = false;
    bool tidying = false;
    bool holed = false;  ///< since take_holed()
    bool used = false;
    std::vector<FileRange> removed;  ///< those that are being given back, and those since then
    std::size_t being_given_back = 0;
    [[nodiscard]] std::uint64_t held_bytes() const noexcept { return images > 0 ? bytes - given_back_bytes : 0; }
  };
  [[nodiscard]] bool is_due(const File& file) const noexcept;
  [[nodiscard]] static std::size_t at(FileIndex file) noexcept { return static_cast<std::size_t>(file); }
  /// Changes the bytes that count for the file and keeps the sum.
  template <class Change>
  void change(FileIndex file, Change&& change);
  void give_back(File& file, const ImageLayout& layout, std::uint64_t offset) const noexcept;
  void take_away(const Place& place) noexcept;

  bool punches_holes_;
  FlatMap<ImageKey, Place, ImageKeyHash> places_;
  std::vector<File> files_;
  std::vector<FileIndex> free_;
  std::uint64_t held_bytes_ = 0;
};

}  // namespace stateport
