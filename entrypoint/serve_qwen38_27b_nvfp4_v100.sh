#!/bin/sh
# Serves a local Qwen3.8-27B NVFP4 checkpoint with the release profile; `appliance serve` does the work.
usage='usage: serve_qwen38_27b_nvfp4_v100.sh TARGET [--draft DIR] [vllm options]
  TARGET        folder of the NVFP4 checkpoint
  --draft DIR   folder of the DFlash2 draft; without it the draft of the profile is downloaded (3.85 GB)
  vllm options  go to vLLM as they are and override the profile'

refuse() {
  printf 'serve_qwen38_27b_nvfp4_v100.sh: %s\n%s\n' "$1" "$usage" >&2
  exit 2
}

case ${1-} in
  -h | --help) printf '%s\n' "$usage"; exit 0 ;;
  '') refuse 'TARGET is missing' ;;
  -*) refuse "TARGET comes first, got \"$1\"" ;;
esac
target=$1
shift

draft=
case ${1-} in
  --draft)
    [ -n "${2-}" ] || refuse '--draft wants a folder'
    draft=$2
    shift 2 ;;
  --draft=?*)
    draft=${1#--draft=}
    shift ;;
  --draft=) refuse '--draft wants a folder' ;;
esac

# The environment that the script is installed in comes first: it need not be activated, and may be reached by a link.
here=$(dirname -- "$(readlink -f -- "$0")")
program=
for candidate in "$here/appliance" "$(command -v appliance)" "$here/../.venv/bin/appliance"; do
  if [ -f "$candidate" ] && [ -x "$candidate" ]; then
    program=$candidate
    break
  fi
done
if [ -z "$program" ]; then
  printf 'serve_qwen38_27b_nvfp4_v100.sh: no program "appliance" in %s, on PATH or in the .venv beside; %s\n' \
    "$here" 'install this package there (`make install`), or call the script of the environment that has it' >&2
  exit 127
fi

exec "$program" serve --profile qwen38_27b_nvfp4_dflash2 --model "$target" ${draft:+--draft "$draft"} -- "$@"
