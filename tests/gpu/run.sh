#!/bin/bash
# Runs on the GPU machine, from a bundle that deploy/bundle.sh made: the op sweep, whole training
# steps, what compute-sanitizer says of a part of them. Prints one table, writes one JSON file.
#
#   deploy/bundle.sh gpu-bundle //tests/gpu:sweep_test //tests/gpu:training_test ...   (where it is built)
#   cp tests/gpu/run.sh gpu-bundle/
#   gpu-bundle/run.sh [RESULTS_FOLDER]                                            (where the GPU is)
#
# WEFT_NCCL_RANKS="1 2 4": how many processes share the GPU through NCCL (more than 1: NCCL 2.32 with
# NCCL_MULTI_RANK_GPU_ENABLE=1). WEFT_SANITIZER_ROWS: a GoogleTest filter for compute-sanitizer.
# CUDA's libraries are the machine's: those on the loader's path, or of its Python's packages.
set -uo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
results="${1:-$here/results}"
mkdir -p "$results"

# Folders of CUDA libraries that a Python installation brings.
python_cuda_folders() {
  python3 - <<'PYTHON' 2>/dev/null
import glob, os, sysconfig
for folder in glob.glob(os.path.join(sysconfig.get_paths()["purelib"], "nvidia", "*", "lib")):
    print(folder)
PYTHON
}
LD_LIBRARY_PATH="$here/lib:$(python_cuda_folders | paste -sd:):${LD_LIBRARY_PATH:-}"
export LD_LIBRARY_PATH

names=() passed=() failed=() seconds=()

# run NAME COMMAND...: a test program, its output in the results folder. Counts are GoogleTest's, or
# those of lines that begin with PASS and FAIL.
run() {
  local name="$1" begin log="$results/$1.log"
  shift
  begin="$(date +%s.%N)"
  timeout 400 "$@" >"$log" 2>&1
  local status=$?
  names+=("$name")
  passed+=("$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log" | tail -1)")
  if [[ -z "${passed[-1]}" ]]; then passed[-1]="$(grep -c '^PASS' "$log")"; fi
  failed+=("$(sed -n 's/^ *\([0-9]*\) FAILED TESTS\{0,1\}$/\1/p' "$log" | tail -1)")
  # Ended before its summary.
  if ((status != 0)) && [[ -z "${failed[-1]}" ]]; then failed[-1]="all (exit $status)"; fi
  seconds+=("$(echo "$(date +%s.%N) - $begin" | bc 2>/dev/null || echo 0)")
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
for test in sweep_test optim_test random_test windows_test training_test; do
  [[ -x "$here/$test" ]] && run "$test" "$here/$test"
done
if [[ -x "$here/nccl_ranks" ]]; then
  for ranks in ${WEFT_NCCL_RANKS:-1}; do run "nccl_$ranks" "$here/nccl_ranks" "$ranks"; done
fi
if command -v compute-sanitizer >/dev/null && [[ -x "$here/sweep_test" ]]; then
  for tool in memcheck racecheck initcheck; do
    run "sweep_$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 "$here/sweep_test" \
      --gtest_filter="${WEFT_SANITIZER_ROWS:-*small*:*odd*:*tail*}"
  done
fi

all_failed=0
printf '%-24s %8s %8s %9s\n' test passed failed seconds
{
  printf '{"tests": ['
  for i in "${!names[@]}"; do
    printf '%-24s %8s %8s %9.1f\n' "${names[i]}" "${passed[i]:-0}" "${failed[i]:-0}" "${seconds[i]}" >&2
    ((i > 0)) && printf ', '
    printf '{"name": "%s", "passed": %s, "failed": "%s", "seconds": %.1f}' \
      "${names[i]}" "${passed[i]:-0}" "${failed[i]:-0}" "${seconds[i]}"
  done
  printf ']}\n'
} >"$results/results.json"
for count in "${failed[@]}"; do [[ -n "$count" && "$count" != 0 ]] && all_failed=1; done
exit "$all_failed"
