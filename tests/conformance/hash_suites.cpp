// SPDX-License-Identifier: Apache-2.0
// Suites of the interoperable block hashes: Megatron-LM's 63-bit fold and vLLM's sha256_cbor.
#include <stateport/parts/cbor_block_hash.hpp>
#include <stateport/parts/megatron_block_hash.hpp>

#include "families.hpp"
#include "hex.hpp"

#include <stdexcept>
#include <string>
#include <vector>

namespace stateport::conformance {
namespace {

CborValue cbor_value(const Json& json) {
  if (json.is_null()) return {};
  if (json.is_number_integer()) return {json.get<std::int64_t>()};
  if (json.is_string()) return {json.get<std::string>()};
  if (!json.is_array()) throw std::runtime_error("an extra key is none of null, integer, text, array: " + json.dump());
  std::vector<CborValue> list;
  for (const Json& element : json) list.push_back(cbor_value(element));
  return {list};
}

BlockDigest cbor_block(CborBlockHasher& hasher, const BlockDigest& parent, const Json& block) {
  std::vector<CborValue> extras;
  if (block.contains("extra") && !block.at("extra").is_null())
    for (const Json& extra : block.at("extra")) extras.push_back(cbor_value(extra));
  return hasher.hash_block(parent, block.at("tokens").get<std::vector<std::int64_t>>(), extras);
}

void block_hash(const Json& rows, Report& report) {
  for (std::size_t i = 0; i < rows.size(); ++i)
    report.run_case("row " + std::to_string(i), [&] {
      const Json& row = rows[i];
      MegatronBlockHasher hasher(row.at("block_size").get<std::int32_t>());
      PromptHashes hashes;
      hasher.hash_prompt(row.at("tokens").get<std::vector<std::int64_t>>(), hashes);
      Json keys = Json::array();
      for (const BlockHash key : hashes.keys) keys.push_back(std::to_string(key));
      expect_equal(keys, row.at("expect"), "hashes");
    });
}

void sha256_cbor_chain(const Json& value, Report& report) {
  const Json chains = value.is_array() ? value : Json::array({value});
  for (std::size_t i = 0; i < chains.size(); ++i)
    report.run_case("chain " + std::to_string(i), [&] {
      const Json& chain = chains[i];
      CborBlockHasher hasher;
      const BlockDigest root = hasher.root(chain.at("seed_string").get<std::string>());
      expect_equal(test::hex(root.bytes), chain.at("none_hash"), "none_hash");
      BlockDigest parent = root;
      for (const Json& block : chain.at("chain")) {
        parent = cbor_block(hasher, parent, block);
        expect_equal(test::hex(parent.bytes), block.at("hash"), "hash");
      }
      if (chain.contains("salted_first_block")) {
        const Json& salted = chain.at("salted_first_block");
        expect_equal(test::hex(cbor_block(hasher, root, salted).bytes), salted.at("hash"), "salted_first_block");
      }
      if (chain.contains("with_group_id")) {
        const Json& group = chain.at("with_group_id");
        expect_equal(test::hex(CborBlockHasher::with_group(parent, group.at("group").get<std::int32_t>())),
                     group.at("key"), "with_group_id");
      }
    });
}

}  // namespace

void add_hash_suites(SuiteTable& table) {
  table.emplace("block_hash", &block_hash);
  table.emplace("sha256_cbor_chain", &sha256_cbor_chain);
}

}  // namespace stateport::conformance
