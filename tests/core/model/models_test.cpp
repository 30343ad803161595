// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/models.hpp>

#include <stateport/core/model/error.hpp>

#include <doctest/doctest.h>

#include <string>

using namespace stateport;

TEST_CASE("the catalogue gives the slot bytes of known models") {
  CHECK(models::all().size() == 59);
  CHECK(models::find("qwen3-next-80b-a3b").slot_bytes() == 39518208);
  CHECK(models::find("Nemotron-H-8B-Base").slot_bytes() == 102137856);
  CHECK(models::find("lfm2-1.2b").slot_bytes() == 81920);
  CHECK(models::find("minimax-text-01").slot_bytes() == 293601280);
  CHECK(models::info("qwen3-next-80b-a3b").kv_bytes_per_token == 24576u);
}

TEST_CASE("drafts lengthen the conv window and a recurrent type replaces the catalogue's") {
  CHECK(models::find("qwen3-next-80b-a3b", {.drafts = 1}).slot_bytes() == 39518208 + 36 * 16384);
  CHECK(models::find("qwen3-next-80b-a3b", {.recurrent_type = ElementType::fp32}).slot_bytes() == 77266944);
}

TEST_CASE("an unknown model is named together with the known ones") {
  try {
    static_cast<void>(models::info("gpt-2"));
    FAIL("no error");
  } catch (const InvalidArgument& error) {
    CHECK(error.value() == "gpt-2");
    CHECK(std::string(error.what()).find("kimi-linear-48b-a3b") != std::string::npos);
  }
  CHECK_THROWS_AS(static_cast<void>(models::find("lfm2-1.2b", {.drafts = -1})), InvalidArgument);
}
