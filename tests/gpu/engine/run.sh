#!/bin/bash
# The plugin inside the real vLLM on one large GPU: tests/gpu/engine/run.sh FOLDER [compare|full|serve|serve-cut]...
#
# compare    eight layers of Qwen3.8-27B's true dimensions through the plugin in five configurations and, multiplied out to
#            FP16, through upstream's kernels; what is done when nothing is named. Writes FOLDER/engine.json.
# full       compare, and 64 layers of random weights at full size.
# serve      `appliance serve` on the eight layers, from a cold start to a warm one. Writes FOLDER/serve.json.
# serve-cut  the same on libraries that appliance.image.shrink cut to this GPU. Writes FOLDER/serve_cut.json.
#
# Wants python (PYTHON names it) with vLLM 0.19.1, for serve also what tests/gpu/engine/packages.py lists, and built kernels
# (SM70_KERNELS_DIR). The records belong in verification/; FOLDER gets a log of each engine too. COMPARED=e4m3 runs that
# configuration alone and keeps the others of FOLDER/engine.json. REHEARSAL replaces the options of serve.py and MODEL the
# checkpoint, to try both serves where there is no GPU.
set -uo pipefail
out=${1:?"usage: $0 FOLDER [compare|full|serve|serve-cut]..."}
shift
[[ $# -gt 0 ]] || set -- compare
python=${PYTHON:-python3}
# The engines run in another folder; a virtual environment's python must keep its own path, so no link is followed.
[[ $python == */* ]] && python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
root=$(cd "$(dirname "$0")/../../.." && pwd)
mkdir -p "$out" && out=$(cd "$out" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PYTHONPATH="$scratch/site:$root:$root/kernels${PYTHONPATH:+:$PYTHONPATH}"
cd "$scratch" || exit 1
"$python" -m tests.gpu.engine.packages entry-points "$scratch/site" || exit 1
status=0

step() { printf '== %s (%s s)\n' "$1" "$SECONDS"; }

model=${MODEL:-$scratch/model/fp8}
if [[ ! -d $model ]]; then
    step model
    "$python" -m tests.gpu.engine.make_model model 8 32768 | tail -n 1
fi

engine() { # engine NAME [VARIABLE=VALUE ...]
    local name=$1
    shift
    env "$@" timeout "${ENGINE_SECONDS:-300}" "$python" -m tests.gpu.engine.collect "$name.json" "runs/$name" >"$out/$name.log" 2>&1
    echo "$name: status $? ($SECONDS s)"
}

compare() {
    step engines
    "$python" -m tests.gpu.engine.compare jobs "$scratch" || return 1
    local ours=(eager graphs e4m3 prefix_cache chunked) theirs=(upstream upstream_fp8)
    case ${COMPARED:-} in
        '') ;;
        e4m3) ours=(e4m3) theirs=(upstream_fp8) ;;
        *) echo "COMPARED=$COMPARED cannot run alone; wanted e4m3 or nothing" >&2; return 2 ;;
    esac
    for name in "${ours[@]}"; do engine "$name" APPLIANCE_VLLM_PLATFORM=sm70 & done
    # Apart from ours where they are many: it autotunes for minutes, and longer beside others.
    [[ -n ${COMPARED:-} ]] || wait
    for name in "${theirs[@]}"; do engine "$name" VLLM_PLUGINS= & done
    wait
    if [[ ${1:-} == full ]]; then
        step "full size"
        APPLIANCE_VLLM_PLATFORM=sm70 timeout 400 "$python" -m tests.gpu.engine.full_size full "$out/full.json" >"$out/full.log" 2>&1 || status=1
        grep -E "loaded and|at once" "$out/full.log"
    fi
    step compare
    "$python" -m tests.gpu.engine.compare record "$scratch" "$out/engine.json" ${COMPARED:-} || status=1
}

serve() { # serve NAME [OPTION ...]
    local name=$1
    shift
    step "$name"
    # shellcheck disable=SC2086 # several options in one variable
    timeout "${SERVE_SECONDS:-580}" "$python" -m tests.gpu.engine.serve "$model" "$out/$name/serve.json" ${REHEARSAL:-} "$@" || status=1
    cp "$out/$name/serve.json" "$out/$name.json"
}

for each; do
    case $each in
        compare | full) compare "$each" || status=1 ;;
        serve) serve serve ;;
        serve-cut)
            step "cut libraries"
            gpu=$("$python" -c 'import torch; print("%d%d" % torch.cuda.get_device_capability() if torch.cuda.is_available() else 0)')
            if "$python" -m tests.gpu.engine.packages cut "$scratch/cut" "$gpu" >"$out/cut.log" 2>&1; then
                tail -n 1 "$out/cut.log"
                PYTHONPATH="$scratch/cut:$PYTHONPATH" serve serve_cut --cut "$scratch/cut"
            else
                tail -n 3 "$out/cut.log"
                status=1
            fi
            ;;
        *) echo "$0: no part called $each; wanted compare, full, serve or serve-cut" >&2; exit 2 ;;
    esac
done
step "done, status $status"
exit "$status"
