#!/bin/bash
# The plugin inside the real vLLM against upstream's kernels, on one large GPU: tests/gpu/engine/run.sh FOLDER [full]
#
# Makes eight layers of Qwen3.8-27B's true dimensions, serves them through the plugin in five configurations and, multiplied
# out to FP16, through upstream's kernels, and compares. `full` also serves 64 layers of random weights.
# Wants python (PYTHON names it) with vLLM 0.19.1, our packages and their entry points, and built kernels
# (SM70_KERNELS_DIR). Writes FOLDER/engine.json, the record that belongs in verification/, and a log for each engine.
set -uo pipefail
out=${1:?"usage: $0 FOLDER [full]"}
python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/../../.." && pwd)
mkdir -p "$out" && out=$(cd "$out" && pwd)
export PYTHONPATH="$root:$root/kernels${PYTHONPATH:+:$PYTHONPATH}"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1

step() { printf '== %s (%s s)\n' "$1" "$SECONDS"; }

step model
"$python" -m tests.gpu.engine.make_model model 8 32768 | tail -n 1
"$python" -m tests.gpu.engine.compare jobs "$scratch" || exit 1

engine() { # engine NAME [VARIABLE=VALUE ...]
    local name=$1
    shift
    env "$@" timeout "${ENGINE_SECONDS:-300}" "$python" -m tests.gpu.engine.collect "$name.json" "runs/$name" >"$out/$name.log" 2>&1
    echo "$name: status $? ($SECONDS s)"
}

step engines
for name in eager graphs e4m3 prefix_cache chunked; do engine "$name" APPLIANCE_VLLM_PLATFORM=sm70 & done
wait
# Apart from ours: it autotunes for minutes, and longer beside others.
for name in upstream upstream_fp8; do engine "$name" VLLM_PLUGINS= & done
wait
status=0
if [[ ${2:-} == full ]]; then
    step "full size"
    APPLIANCE_VLLM_PLATFORM=sm70 timeout 400 "$python" -m tests.gpu.engine.full_size full "$out/full.json" >"$out/full.log" 2>&1 || status=1
    grep -E "loaded and|at once" "$out/full.log"
fi
step compare
"$python" -m tests.gpu.engine.compare record "$scratch" "$out/engine.json" || status=1
step "done, status $status"
exit "$status"
