#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tests/fuzz/run.sh [--seconds N | --runs N] [--seed N] [--jobs N] [TARGET…]: runs the fuzz targets of build/fuzz, all or
# these, for so long each (60 s), and prints executions, new coverage and findings of each. Inputs that reach something
# new are kept in build/fuzz/corpus, findings in build/fuzz/findings. Exit code 1: there was a finding.
# The same code, corpora and seed (1) try the same inputs, where the system lets addresses be fixed; the time says how
# many of them.
# --check: exit code 77 where clang has no libFuzzer or no OpenMP.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# What targets write to files lies in memory, where that is offered: a fuzzer does not wait for a disk.
[ ! -w /dev/shm ] || export TMPDIR=/dev/shm
export LSAN_OPTIONS=suppressions=tests/fuzz/leaks.txt:print_suppressions=0
limit=-max_total_time=60
seed=1
jobs=1
targets=()
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) limit=-max_total_time=$2; shift ;;
    --runs) limit=-runs=$2; shift ;;
    --seed) seed=$2; shift ;;
    --jobs) jobs=$2; shift ;;
    --check)
      clang++ -fsanitize=fuzzer -fopenmp -x c++ - -o /dev/null 2>/dev/null <<<'
        extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' && exit 0
      printf 'clang with libFuzzer and OpenMP is not here\n'
      exit 77
      ;;
    -*) printf 'no option: %s\n' "$1" >&2; exit 2 ;;
    *) targets+=("$1") ;;
  esac
  shift
done
if [ ${#targets[@]} = 0 ]; then
  for program in build/fuzz/bin/fuzz-*; do
    [ ! -x "$program" ] || targets+=("${program##*/fuzz-}")
  done
fi

# run TARGET: one line of what it did. Memory that is not freed, or more than 2 GiB, an allocation of more than 256 MiB
# and an input that takes two minutes are findings, too. A list of the corpus has an order, a folder has none.
run() {
  local target=$1 work=build/fuzz/corpus/$1 log=build/fuzz/$1.log status=0
  mkdir -p "$work" build/fuzz/findings
  local fixed=()
  ! setarch -R true 2>/dev/null || fixed=(setarch -R)
  local inputs=("tests/fuzz/corpus/$target"/*)
  [ "$target" != model_config ] || inputs+=(tests/core/model/configs/*)
  printf '%s\n' "${inputs[@]}" | LC_ALL=C sort | paste -sd , >"build/fuzz/$target.inputs"
  UBSAN_OPTIONS=print_stacktrace=1 "${fixed[@]}" "build/fuzz/bin/fuzz-$target" "$limit" -seed="$seed" -reload=0 \
    -max_len=4096 -timeout=120 -rss_limit_mb=2048 -malloc_limit_mb=256 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/findings/$target-" -seed_inputs="@build/fuzz/$target.inputs" "$work" \
    >"$log" 2>&1 </dev/null || status=$?
  figure() { sed -n "s/^stat::$1: *//p" "$log"; }
  local before after
  before=$(sed -n 's/.*INITED cov: \([0-9]*\).*/\1/p' "$log")
  after=$(sed -n 's/^#.* cov: \([0-9]*\).*/\1/p' "$log" | tail -n 1)
  printf '%-18s %12s executions, %7s/s, coverage %s -> %s, %s new inputs, ' "$target" \
    "$(figure number_of_executed_units)" "$(figure average_exec_per_sec)" "$before" "$after" "$(figure new_units_added)"
  if [ "$status" = 0 ]; then
    printf 'no finding\n'
  else
    printf 'A FINDING (exit code %s)\n' "$status"
    grep -avE '^(#|INFO|[[:space:]]*NEW_FUNC)' "$log" | head -n 60
    return 1
  fi
}
export -f run
export limit seed
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} bash -c 'set -euo pipefail; run {}'
