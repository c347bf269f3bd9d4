#!/bin/bash
# All that only a GPU can show, in one go: tests/gpu/run.sh FOLDER
#
# Wants python with torch, numpy, pytest and cuda-bindings (PYTHON names it), no network, and kernels that were built
# before (SM70_KERNELS_DIR, or build/kernels of this checkout). Writes into FOLDER: gpu.json, the record that belongs in
# verification/; benchmark.json; a log for each step. Ends with 1 when the suite or the sanitizer found something.
# Each step has its time (SUITE_SECONDS, SANITIZER_SECONDS for each run of a tool, BENCHMARK_SECONDS), nine minutes in all.
# The benchmark also times vLLM's kernels where GPU_HOST, or .carry/gpu_host of this checkout, is a folder whose setup.sh
# puts vLLM on this python's path.
set -uo pipefail
folder=${1:?"usage: $0 FOLDER"}
python=${PYTHON:-python3}
# The suite runs in another folder; a virtual environment's python must keep its own path, so no link is followed.
[[ $python == */* ]] && python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
export PYTHONPATH="$root/kernels${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1
status=0

"$python" -c 'import sys, pytest, torch, cuda.bindings.driver
sys.exit(not torch.cuda.is_available() or torch.cuda.get_device_capability() < (7, 0))' || {
    echo "$0: $python needs torch, numpy, pytest, cuda-bindings and a GPU of compute capability 7.0 or newer" >&2
    exit 1
}

step() { printf '== %s (%s s)\n' "$1" "$SECONDS"; }

step suite
# An interrupt, so that what was proven by then is still recorded.
(cd "$root/tests/gpu" && SM70_GPU_RECORD="$folder/gpu.json" timeout -s INT -k 9 "${SUITE_SECONDS:-120}" \
    "$python" -m pytest -c pytest.ini --rootdir . -q .) >"$folder/suite.log" 2>&1 || status=1
tail -n 15 "$folder/suite.log"

# Errors of calls are left out: cuda-bindings asks the driver for functions that it may lack, and each counted as one.
asked=(--report-api-errors no --error-exitcode 9)
seconds=${SANITIZER_SECONDS:-70}
verdicts=()

# sanitized TOOL LOG [OPERATOR ...]
sanitized() {
    local tool=$1 log=$folder/$2.log
    shift 2
    # Each tensor is an allocation of its own then, so that memcheck sees where it ends.
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 timeout "$seconds" compute-sanitizer --tool "$tool" "${asked[@]}" \
        "$python" "$root/tests/gpu/sanitized.py" "$((seconds * 6 / 10))" "$@" >"$log" 2>&1
    local ended=$?
    grep -v '^launch ' "$log" | tail -n 4
    return "$ended"
}

tools=(memcheck racecheck synccheck)
declare -A running
if command -v compute-sanitizer >/dev/null; then
    # Side by side: each spends most of its time on the processor.
    step "${tools[*]}"
    # What racecheck says of the dense kernels is worth what it says of a kernel that is right by inspection.
    sanitized racecheck racecheck_control barrier_control
    for tool in "${tools[@]}"; do
        sanitized "$tool" "$tool" &
        running[$tool]=$!
    done
fi
for tool in "${tools[@]}"; do
    if [[ ! -v running[$tool] ]]; then
        verdicts+=("$tool=not run: no compute-sanitizer here")
        continue
    fi
    wait "${running[$tool]}"
    ended=$?
    if [[ $tool == racecheck ]]; then
        said=$("$python" -c 'import sys; from pathlib import Path; from sm70_kernels.proof.sanitizer import read, verdict
print(verdict(*(read(Path(log).read_text(errors="replace")) for log in sys.argv[1:3]), int(sys.argv[3])))' \
            "$folder/racecheck_control.log" "$folder/racecheck.log" "$ended") || said="failed: its log cannot be read"
        verdicts+=("$tool=$said")
        [[ $said != failed* ]] || status=1
        continue
    fi
    case $ended in
        0) verdicts+=("$tool=clean: $(grep -m1 -E '^[0-9]+ of [0-9]+ cases' "$folder/$tool.log")") ;;
        124) verdicts+=("$tool=not finished in $seconds s") ;;
        *) verdicts+=("$tool=failed: $(grep -m1 -E 'SUMMARY: [1-9]|[1-9][0-9]* results wrong|Error' "$folder/$tool.log")"); status=1 ;;
    esac
done
printf '%s\n' "${verdicts[@]}"
if [[ -f $folder/gpu.json ]]; then
    "$python" -c 'import sys; from pathlib import Path; from sm70_kernels.proof.record import add_sanitizer
add_sanitizer(Path(sys.argv[1]), sys.argv[2], dict(each.split("=", 1) for each in sys.argv[3:]))' \
        "$folder/gpu.json" "compute-sanitizer ${asked[*]}" "${verdicts[@]}"
fi

step benchmark
host=${GPU_HOST:-$root/.carry/gpu_host}
(
    # shellcheck source=/dev/null
    [[ ! -f $host/setup.sh ]] || . "$host/setup.sh"
    timeout "${BENCHMARK_SECONDS:-130}" "$python" "$root/tests/gpu/benchmark.py" "$folder/benchmark.json"
) >"$folder/benchmark.log" 2>&1 || { echo "the benchmark failed"; status=1; }
cat "$folder/benchmark.log"
step "done, status $status"
exit "$status"
