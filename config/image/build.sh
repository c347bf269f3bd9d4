#!/usr/bin/env bash
# Builds one image. Usage: build.sh TARGET IMAGE [docker build options]
# CA_BUNDLE names a bundle of certificates for a network that re-signs TLS; NETWORK is the build's (default: host). As for
# compose, .env may hold CA_BUNDLE, INDEX_URL and BUILD_NETWORK; the environment wins.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=$1 image=$2
shift 2

fail() { echo "image: $1" >&2; exit 2; }
docker buildx version >/dev/null 2>&1 || fail "docker has no buildx; wanted BuildKit; install docker-buildx"

of_env_file() { [ ! -f .env ] || sed -nE "s/^$1=[\"']?([^\"']*)[\"']?$/\1/p" .env | tail -n 1; }
BUILD_NETWORK=${BUILD_NETWORK:-$(of_env_file BUILD_NETWORK)}
INDEX_URL=${INDEX_URL:-$(of_env_file INDEX_URL)}

base=${BASE:-debian:bookworm-slim}
config/image/base.sh "$base"
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
options=(
  --network "${NETWORK:-${BUILD_NETWORK:-host}}" --target "$target" --tag "$image"
  --build-arg "BASE=$base"
  --build-arg "BASE_DIGEST=$(docker image inspect --format '{{range .RepoDigests}}{{.}} {{end}}' "$base" | sed -n 's/^[^ ]*@\(sha256:[0-9a-f]*\).*/\1/p')"
  --build-arg "REVISION=$(git describe --always --dirty --abbrev=40 2>/dev/null || echo unknown)"
  --build-arg "VERSION=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' appliance/__init__.py)"
  --build-arg "CREATED=$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)"
  --build-arg "SOURCE_DATE_EPOCH=$epoch"
)
ca=${CA_BUNDLE:-$(of_env_file CA_BUNDLE)}
ca=${ca:-${SSL_CERT_FILE:-}}
[ -z "$ca" ] || options+=(--secret "id=ca,src=$ca")
[ -z "$INDEX_URL" ] || options+=(--build-arg "INDEX_URL=$INDEX_URL")
for proxy in http_proxy https_proxy no_proxy; do [ -z "${!proxy:-}" ] || options+=(--build-arg "$proxy"); done

docker buildx build "${options[@]}" "$@" .
