// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The names of all launches, as profilers show them.
namespace stateport::kernels::labels {

inline constexpr const char* copy_slots = "stateport::copy_slots";
inline constexpr const char* copy_shifted = "stateport::copy_shifted";
inline constexpr const char* copy_slots_on_device = "stateport::copy_slots_on_device";
inline constexpr const char* commit_scratch = "stateport::commit_scratch";
inline constexpr const char* commit_step = "stateport::commit_step";
inline constexpr const char* clear_slots = "stateport::clear_slots";
inline constexpr const char* align_pre_step = "stateport::align_pre_step";
inline constexpr const char* align_post_step = "stateport::align_post_step";
inline constexpr const char* align_add_request = "stateport::align_add_request";
inline constexpr const char* align_forget = "stateport::align_forget";
inline constexpr const char* scatter_accepted = "stateport::scatter_accepted";
inline constexpr const char* gather_decode = "stateport::gather_decode";
inline constexpr const char* align_gather_held = "stateport::align_gather_held";
inline constexpr const char* align_verify_blocks = "stateport::align_verify_blocks";
inline constexpr const char* align_wrote_blocks = "stateport::align_wrote_blocks";
inline constexpr const char* align_forget_blocks = "stateport::align_forget_blocks";
inline constexpr const char* gather_by_index = "stateport::gather_by_index";
inline constexpr const char* copy_slots_with_sums = "stateport::copy_slots_with_sums";
inline constexpr const char* sum_slots = "stateport::sum_slots";
inline constexpr const char* settle_checks = "stateport::settle_checks";
/// Does nothing, and is the first launch of its kind.
inline constexpr const char* prepare = "stateport::prepare";

}  // namespace stateport::kernels::labels
