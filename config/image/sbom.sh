#!/usr/bin/env bash
# Copies the bill of materials out of each image that is there. Usage: sbom.sh IMAGE FOLDER
set -euo pipefail
image=$1 folder=$2

found=
for target in v100 portable sidecar; do
  docker image inspect "$image:$target" >/dev/null 2>&1 || continue
  mkdir -p "$folder"
  docker run --rm --network none --entrypoint cat "$image:$target" /opt/appliance/sbom.cdx.json >"$folder/$target.cdx.json.new"
  mv "$folder/$target.cdx.json.new" "$folder/$target.cdx.json"
  echo "$folder/$target.cdx.json"
  found=1
done
[ -n "$found" ] || { echo "sbom: no image $image:v100, :portable or :sidecar; wanted one; run make image" >&2; exit 1; }
