#!/usr/bin/env bash
# Resolves pyproject.toml into the hash-locked files beside this one. Usage: lock.sh UV
set -euo pipefail
cd "$(dirname "$0")/../.."
uv=$1
options=(-q --generate-hashes --python-version 3.11 --python-platform x86_64-manylinux_2_28
         --no-header --no-annotate --no-emit-index-url)

lock() { # NAME EXTRA...
  local name=$1 extras=() extra
  shift
  for extra in "$@"; do extras+=(--extra "$extra"); done
  "$uv" pip compile pyproject.toml "${extras[@]}" --override config/requirements/overrides.txt "${options[@]}" \
    -o "config/requirements/$name.txt"
  echo "config/requirements/$name.txt: $(grep -c '==' "config/requirements/$name.txt") packages"
}

lock portable engine-portable sidecar bench dev
lock v100 engine-v100 sidecar bench dev
lock sidecar sidecar
echo 'uv==0.13.9' | "$uv" pip compile - "${options[@]}" -o config/requirements/bootstrap.txt
