#!/bin/sh
# Installs the copy of this repository that lies in /opt/appliance into /opt/venv, inside a build stage.
# Editable: config/ and kernels/csrc are found beside the sources.
set -eu
cd /opt/appliance
PYTHONPATH=$(echo /opt/tools/lib/python3.*/site-packages) /opt/tools/bin/uv pip install -q --no-cache \
  --python /opt/venv --no-deps --no-build-isolation -e .
rm -rf ./*.egg-info
/opt/venv/bin/python -m compileall -q appliance entrypoint kernels/sm70_kernels
