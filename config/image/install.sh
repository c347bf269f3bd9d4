#!/bin/sh
# Installs the copy of this repository that lies in /opt/appliance into /opt/venv, inside a build stage.
# Editable: config/ and kernels/csrc are found beside the sources.
set -eu
cd /opt/appliance
# A checkout that is its owner's alone (umask 077) must not make an image that no other user can read.
find . ! -type l \( ! -perm -004 -o -type d ! -perm -001 \) -exec chmod a+rX {} +
PYTHONPATH=$(echo /opt/tools/lib/python3.*/site-packages) /opt/tools/bin/uv pip install -q --no-cache \
  --python /opt/venv --no-deps --no-build-isolation -e .
rm -rf ./*.egg-info
/opt/venv/bin/python -m compileall -q appliance entrypoint kernels/sm70_kernels
