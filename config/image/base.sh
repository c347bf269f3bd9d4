#!/usr/bin/env bash
# Makes sure that the base image is there: pulled, or bootstrapped from Debian's packages where no registry is reached.
# Usage: base.sh [IMAGE]   (as root when it has to bootstrap; IMAGE is debian:bookworm-slim unless given)
set -euo pipefail
image=${1:-debian:bookworm-slim}

fail() { echo "base image: $1" >&2; exit 1; }

docker image inspect "$image" >/dev/null 2>&1 && exit 0
timeout 120 docker pull -q "$image" 2>/dev/null && exit 0

case $image in
  debian:bookworm-slim) ;;
  *) fail "$image cannot be pulled; wanted a reachable registry, or debian:bookworm-slim, which can be bootstrapped; use that" ;;
esac
command -v debootstrap >/dev/null || fail "$image cannot be pulled and debootstrap is missing; run apt-get install debootstrap"
[ "$(id -u)" = 0 ] || fail "$image cannot be pulled and debootstrap needs root, this is user $(id -u); run it as root"

# The mirrors that this machine's own apt uses: they are reachable.
uri() { apt-get indextargets --format '$(REPO_URI)' "Codename: $1" 2>/dev/null | head -n 1; }
main=$(uri bookworm) security=$(uri bookworm-security)
[ -n "$main" ] || fail "apt knows no mirror of Debian bookworm; wanted one in /etc/apt; add it and run apt-get update"

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
log=$root/bootstrap.log
debootstrap --variant=minbase bookworm "$root/fs" "$main" >"$log" 2>&1 || { tail -n 5 "$log" >&2; fail "debootstrap failed"; }

cat >"$root/fs/etc/apt/sources.list" <<SOURCES
deb $main bookworm main
deb $main bookworm-updates main
${security:+deb $security bookworm-security main}
SOURCES
# As in Debian's slim images: documentation and translations are not installed, now or later.
cat >"$root/fs/etc/dpkg/dpkg.cfg.d/slim" <<'EXCLUDE'
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/man/*
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/lintian/*
EXCLUDE
printf '%s\n' 'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin || true"; };' \
  'Acquire::Languages "none";' 'Acquire::GzipIndexes "true";' 'Apt::AutoRemove::SuggestsImportant "false";' \
  >"$root/fs/etc/apt/apt.conf.d/slim"
printf '#!/bin/sh\nexit 101\n' >"$root/fs/usr/sbin/policy-rc.d"
chmod 755 "$root/fs/usr/sbin/policy-rc.d"
find "$root/fs/usr/share/doc" -mindepth 1 ! -type d ! -name copyright -delete
find "$root/fs/usr/share/doc" -mindepth 1 -type d -empty -delete
rm -rf "$root"/fs/usr/share/{man,info,locale,lintian}/* "$root"/fs/var/cache/apt/*.bin \
  "$root"/fs/var/cache/apt/archives/*.deb "$root"/fs/var/lib/apt/lists/* "$root"/fs/var/log/*.log "$root"/fs/var/log/apt/*
: >"$root/fs/etc/machine-id"
rm -f "$root/fs/etc/hostname" "$root/fs/etc/resolv.conf"

tar -C "$root/fs" --numeric-owner -c . | docker import --change 'CMD ["bash"]' - "$image" >/dev/null
echo "base image: $image bootstrapped from Debian's packages"
