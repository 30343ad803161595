#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# day.sh tests|perf|deep [--results FOLDER]: what one command on the machine with the GPU does; README.md beside this
# file. Needs neither a network nor a compiler, and ends by itself within ten minutes.
#   tests  what the machine is; all tests of backends, kernels, the C interface and the tiny engine; memory checkers
#   perf   the roof, every benchmark of a GPU, transformers, and a report of the goals
#   deep   profiles of the kernels, more checkers, more seeds
# A step that fails ends no other. Results, the summary last: FOLDER, default results beside this file.
# Exit code: 0 all steps passed; 1 one did not; 77 there is no device.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
readonly here stage_seconds_max=570
stage=${1:-} results=$here/results failed=0 starter=() site=''
[ "${2:-}" != --results ] || results=${3:?a folder}
case $stage in tests | perf | deep) ;; *) sed -n '3,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 1 ;; esac
PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
mkdir -p "$results/$stage"
results=$(cd "$results" && pwd -P)
readonly results log=$results/$stage.log summary=$results/$stage.txt
: >"$log"
: >"$summary"

say() { printf '%s\n' "$1" | tee -a "$summary"; }

# step SECONDS NAME COMMAND…: runs it (`program NAME ARGUMENT…`: one of those that were carried), for that long or for what is left of the stage; its output goes to the log and to
# <stage>/<NAME>.txt.
step() {
  local limit=$1 name=$2 status=0 begin=$SECONDS left=$((stage_seconds_max - SECONDS))
  shift 2
  [ "$limit" -le "$left" ] || limit=$left
  if [ "$limit" -lt 5 ]; then
    say "not run  $name: no time left"
    failed=1
    return 1
  fi
  local output=$results/$stage/${name//[^A-Za-z0-9_.-]/_}.txt
  case $1 in  # timeout runs no functions
    program) set -- "${starter[@]}" "$here/bin/$2" "${@:3}" ;;
    machine) set -- bash -c "here='$here'; $(declare -f machine); machine" ;;
  esac
  timeout -k 5 "$limit" "$@" >"$output" 2>&1 || status=$?
  { printf '\n##### %s: %s\n' "$name" "$*" && cat "$output"; } >>"$log"
  case $status in
    0) say "passed   $name, $((SECONDS - begin)) s" ;;
    77) say "skipped  $name: $(sed -n 's/^skipped: //p' "$output" | head -n 1)" ;;
    124 | 137) say "TOO LONG $name, $limit s" ;;
    *) say "FAILED   $name: exit code $status, $((SECONDS - begin)) s" && tail -n 20 "$output" ;;
  esac
  [ "$status" = 0 ] || [ "$status" = 77 ] || failed=1
  return "$status"
}

# Where the C library here is too old for the programs, they bring their own.
choose_starter() {
  export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  "$here/bin/test-backends" --version >/dev/null 2>&1 && return
  local driver
  driver=$(ldconfig -p 2>/dev/null | sed -nE 's/.*libcuda\.so\.1 .*=> (.*)\/libcuda.*/\1/p' | head -n 1)
  starter=("$here"/glibc/ld-linux* --library-path "$here/glibc:$here/lib${driver:+:$driver}")
}
has() { command -v "$1" >/dev/null || { say "not run  $2: $1 is not here" && return 1; }; }

# shellcheck disable=SC2329  # step calls it
machine() {
  nvidia-smi || echo "nvidia-smi is not here"
  uname -a && nproc && cat "$here/git" && ldd --version | head -n 1
  python3 -c 'import torch, triton; print("torch", torch.__version__, "triton", triton.__version__)' || true
}
device_name() {
  nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1 | tr ' ' '-' | tr -dc 'A-Za-z0-9-'
}

# checker TOOL SECONDS SEEDS FILES: the tests in these files under one of compute-sanitizer's tools.
checker() {
  has compute-sanitizer "$1" || return 0
  step "$2" "$1 $4" env "STATEPORT_TEST_SEEDS=$3" compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 20 \
    "${starter[@]}" "$here/bin/test-kernels" "--source-file=$4"
}

run_tests() {
  local source
  step 60 test-backends program test-backends
  step 60 test-runtime program test-runtime
  for source in "$here"/tests/device/*_test.cpp; do  # a process each: what it does first has been done by nobody
    source=$(basename "$source" .cpp)
    step 60 "device $source" program test-device "--source-file=*/$source.cpp"
  done
  step 200 test-kernels program test-kernels
  step 60 test-c program test-c
  step 120 test-engine program test-engine
  step 60 test-engine-moved-state program test-engine-moved-state
  step 60 tiny-engine program stateport-tiny-engine --seeds 200
  checker memcheck 90 6 '*/copy_s*.cpp,*/align_*.cpp,*/commit_*.cpp,*/clear_slots_test.cpp'
  checker racecheck 60 2 '*/align_context_test.cpp,*/copy_slots_test.cpp'
}

# The report runs programs: these say again what was measured, so that a device is used once.
recorded() {
  python3 -B - "$results/perf" <<'PY'
import json, pathlib, sys

folder = pathlib.Path(sys.argv[1])
programs = folder / "programs"
programs.mkdir(exist_ok=True)
for name in ("gpu_copy_bench", "gpu_step_bench", "gpu_launch_cost_bench", "torch_copy_bench", "transformers_bench"):
    merged = {"context": {}, "benchmarks": []}
    for path in sorted(folder.glob(name + ".*.json")):
        try:
            part = json.loads(path.read_text())
        except ValueError as error:
            print(f"{path.name} cannot be read: {error}")
            continue
        merged["context"] = part["context"]
        merged["benchmarks"] += part["benchmarks"]
    if not merged["benchmarks"]:
        continue
    (folder / (name + ".json")).write_text(json.dumps(merged, indent=1))
    program = programs / name
    program.write_text(f"#!/bin/sh\nexec cat '{folder / name}.json'\n")
    program.chmod(0o755)
PY
}

# bench PROGRAM SECONDS FILTER
bench() {
  step "$2" "$1 $3" program "$1" "--benchmark_filter=$3" --benchmark_out_format=json \
    "--benchmark_out=$results/perf/$1.${3//[^A-Za-z0-9]/_}.json"
}
torch_bench() {
  local output=$results/perf/torch_copy_bench.${1//[^A-Za-z0-9]/_}.json library
  library=$(find "$here/lib" -name 'libstateport*_c_loadable.so' | head -n 1)
  step 60 "torch_copy_bench $1" bash -c "python3 -B '$here/perf/gpu/torch_copy_bench.py' --library '$library' \
    --benchmark_filter '$1' >'$output'"
}
# The wheels that were carried, those of transformers, unpacked beside the results, which they are no part of.
unpack_wheels() {
  local wheel
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  for wheel in "$here"/wheels/*.whl; do
    [ ! -f "$wheel" ] || python3 -m zipfile -e "$wheel" "$site" || return
  done
}
# transformers_bench MODEL FILTER
transformers_bench() {
  local output=$results/perf/transformers_bench.$1_${2//[^A-Za-z0-9]/_}.json library
  library=$(find "$here/lib" -name 'libstateport*_c_loadable.so' | head -n 1)
  step 60 "transformers_bench $1 $2" env "PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 \
    bash -c "python3 -B '$here/perf/gpu/transformers_bench.py' --library '$library' --model '$1' \
    --benchmark_filter '$2' >'$output'"
}

run_perf() {
  local filter model
  for filter in '^G1' '^G2' '^G4/sd' '^G4/ds' '^G5' '^G6'; do bench gpu_copy_bench 60 "$filter"; done
  for filter in '^G3' '^idle' '^align' '^G9'; do bench gpu_step_bench 60 "$filter"; done
  bench gpu_launch_cost_bench 30 '^G10'
  bench gpu_roof_bench 120 '^roof'
  for filter in '^G3$' '^G4' '^G5$' '^G1/(1|4|16)$' '^G1/(64|256|512)$'; do torch_bench "$filter"; done
  unpack_wheels
  for model in dense moe; do
    for filter in '^H1/.*chunk:4096$' '^H1/.*chunk:16384$' '^(hit|again|restart)'; do transformers_bench "$model" "$filter"; done
  done
  recorded
  local name
  name=$(device_name)
  step 60 report python3 -B "$here/perf/report/perf_report.py" run --programs "$results/perf/programs" \
    --out "$results/perf/${name:-device}-$(date +%F).json" --only G1,G2,G3,G4,G5,G6,G7,G9,G10,G11,H1,align \
    --fact "git=$(cat "$here/git")" --fact "device=$name" --fact backend=CUDA --fact build=Release \
    --fact "kokkos=$(cat "$here/kokkos-version" 2>/dev/null)"
  cat "$results/perf/report.txt"
}

# profile NAME KERNELS SKIPPED COUNT PROGRAM FILTER
profile() {
  has ncu "profile $1" || return 0
  step 80 "profile $1" ncu --clock-control none --cache-control all --set detailed -k "regex:$2" --launch-skip "$3" \
    --launch-count "$4" "${starter[@]}" "$here/bin/$5" "--benchmark_filter=$6"
}

run_deep() {
  profile copy 'CopyAligned|twin_copy' 2 6 gpu_copy_bench '^G1/16'
  profile shift CopyRows 10 2 gpu_copy_bench '^G4/.*window:4/shift:1'
  profile convert CopyAligned 2 1 gpu_copy_bench '^G5'
  profile commit 'CommitStep|twin_commit' 2 4 gpu_step_bench '^G9'
  profile align AlignStep 4 2 gpu_step_bench '^align/16'
  checker initcheck 60 2 '*/align_context_test.cpp'
  checker synccheck 60 2 '*/align_context_test.cpp,*/copy_slots_test.cpp'
  step 150 "more seeds" env STATEPORT_TEST_FIRST_SEED=100000 STATEPORT_TEST_SEEDS=4000 "${starter[@]}" \
    "$here/bin/test-kernels" '--source-file=*/copy_*.cpp,*/align_context_test.cpp'
}

choose_starter
step 60 machine machine
status=0
step 60 "programs start" program test-backends '--source-file=*/runtime_test.cpp' || status=$?
if [ "$status" = 77 ] || grep -q 'libcuda.so.1: cannot open' "$results/$stage/programs_start.txt"; then
  say "no device: nothing to do here"
  exit 77
elif [ "$status" = 127 ]; then
  say "the programs do not start here: see README.md"
  exit 1
fi
case $stage in
  tests) run_tests ;;
  perf) run_perf ;;
  deep) run_deep ;;
esac
printf '\n' && cat "$summary"
exit "$failed"
