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

# names FILE: the packages of a locked file, in order.
names() { sed -nE 's/^([a-z0-9-]+)==.*/\1/p' "$1" | sort; }

# What only the extra `dev` brings: images leave it out (`uv --excludes`).
spare() {
  local runtime engine
  runtime=$(mktemp)
  for engine in portable v100; do
    "$uv" pip compile pyproject.toml --extra "engine-$engine" --extra sidecar --extra bench -q --no-header --no-annotate \
      --override config/requirements/overrides.txt -c "config/requirements/$engine.txt" --python-version 3.11 \
      --python-platform x86_64-manylinux_2_28 --no-emit-index-url -o "$runtime"
    comm -23 <(names "config/requirements/$engine.txt") <(names "$runtime")
  done | sort | uniq -d
  rm -f "$runtime"
}

lock portable engine-portable sidecar bench dev
lock v100 engine-v100 sidecar bench dev
lock sidecar sidecar
# In the versions that the tests with an engine run against, too.
(options+=(--constraints config/requirements/portable.txt) && lock check sidecar bench dev)
echo 'uv==0.13.9' | "$uv" pip compile - "${options[@]}" -o config/requirements/bootstrap.txt
{ echo '# What the locks hold for tests and checks alone, and no image needs. Written by config/requirements/lock.sh.'; spare; } \
  > config/image/not-in-images.txt
# What writes an image's bill of materials, and the build backend, beside the images.
printf '%s\n' 'cyclonedx-bom>=7' 'setuptools==77.0.3' | "$uv" pip compile - "${options[@]}" -o config/image/tools.txt
