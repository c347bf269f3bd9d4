#!/usr/bin/env bash
# Installs and starts Docker on a bare Debian bookworm machine and makes the base image. As root; safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "docker: $1" >&2; exit 1; }
step() { printf 'docker: %-58s [%3ds]\n' "$1" "$SECONDS"; }
install() { DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >"$log" 2>&1 ||
  { tail -n 5 "$log" >&2; fail "apt-get install $* failed"; }; }

usable() { docker info >/dev/null 2>&1 && docker compose version >/dev/null 2>&1 && docker buildx version >/dev/null 2>&1; }
if ! usable; then
  [ "$(id -u)" = 0 ] || fail "this is user $(id -u); wanted root, to install and start Docker; run it as root"
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
fi

if ! docker info >/dev/null 2>&1 && ! command -v dockerd >/dev/null; then
  step "Docker from bookworm"
  apt-get update -qq
  install docker.io iptables debootstrap ca-certificates
fi

if ! docker compose version >/dev/null 2>&1 || ! docker buildx version >/dev/null 2>&1; then
  step "compose and buildx from trixie"
  # Bookworm has neither as a plugin. At priority 50 nothing else of this machine comes from trixie.
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' | head -n 1)
  [ -n "$mirror" ] || fail "apt knows no mirror of Debian bookworm; wanted one in /etc/apt; add it and run apt-get update"
  printf 'Types: deb\nURIs: %s\nSuites: trixie\nComponents: main\nSigned-By: %s\n' "$mirror" \
    /usr/share/keyrings/debian-archive-keyring.gpg >/etc/apt/sources.list.d/trixie.sources
  printf 'Package: *\nPin: release n=trixie\nPin-Priority: 50\n' >/etc/apt/preferences.d/trixie
  apt-get update -qq
  install -t trixie docker-compose docker-buildx
fi

if ! docker info >/dev/null 2>&1; then
  step "daemon"
  rm -f /var/run/docker.pid
  setsid nohup dockerd --storage-driver overlay2 >>/var/log/dockerd.log 2>&1 </dev/null &
  for _ in $(seq 60); do
    docker info >/dev/null 2>&1 && break
    sleep 1
  done
  docker info >/dev/null 2>&1 || { tail -n 5 /var/log/dockerd.log >&2; fail "the daemon did not start in 60 s"; }
fi

step "base image"
config/image/base.sh
step "ready: $(docker version --format 'engine {{.Server.Version}}'), $(docker compose version --short), $(docker buildx version | cut -d' ' -f2)"
