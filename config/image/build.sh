#!/usr/bin/env bash
# Builds one image and says how large its layers are. Usage: build.sh TARGET IMAGE [docker build options]
# CA_BUNDLE names a bundle of certificates for a network that re-signs TLS; NETWORK is the build's (default: host).
set -euo pipefail
cd "$(dirname "$0")/../.."
target=$1 image=$2
shift 2

fail() { echo "image: $1" >&2; exit 2; }
docker buildx version >/dev/null 2>&1 || fail "docker has no buildx; wanted BuildKit; install docker-buildx"

base=${BASE:-debian:bookworm-slim}
config/image/base.sh "$base"
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
options=(
  --network "${NETWORK:-host}" --target "$target" --tag "$image"
  --build-arg "BASE=$base"
  --build-arg "BASE_DIGEST=$(docker image inspect --format '{{range .RepoDigests}}{{.}} {{end}}' "$base" | sed -n 's/^[^ ]*@\(sha256:[0-9a-f]*\).*/\1/p')"
  --build-arg "REVISION=$(git describe --always --dirty --abbrev=40 2>/dev/null || echo unknown)"
  --build-arg "VERSION=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' appliance/__init__.py)"
  --build-arg "CREATED=$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)"
  --build-arg "SOURCE_DATE_EPOCH=$epoch"
)
ca=${CA_BUNDLE:-${SSL_CERT_FILE:-}}
[ -z "$ca" ] || options+=(--secret "id=ca,src=$ca")
[ -z "${INDEX_URL:-}" ] || options+=(--build-arg "INDEX_URL=$INDEX_URL")
for proxy in http_proxy https_proxy no_proxy; do [ -z "${!proxy:-}" ] || options+=(--build-arg "$proxy"); done

docker buildx build "${options[@]}" "$@" .
