// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target over every file of folders, with any compiler: an input that a fuzzer once found stays a test.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < argc; ++i)
    for (const auto& entry : std::filesystem::directory_iterator(argv[i]))
      if (entry.is_regular_file()) files.push_back(entry.path());
  std::ranges::sort(files);
  for (const std::filesystem::path& file : files) {
    std::fprintf(stderr, "%s\n", file.c_str());  // the last line names the input that ended the program
    std::ifstream stream(file, std::ios::binary);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(stream)), {});
    // A copy without room behind it, so that a sanitizer sees each byte read too far.
    const auto copy = std::make_unique<std::uint8_t[]>(bytes.size());
    std::ranges::copy(bytes, copy.get());
    LLVMFuzzerTestOneInput(copy.get(), bytes.size());
  }
  std::printf("%zu inputs\n", files.size());
  return files.empty() ? 1 : 0;
}
