#!/bin/sh
# Lays /opt/venv out below /layers, inside a build stage: what changes least and weighs most comes first, and no layer of
# the image is so large that a broken download costs much.
set -eu
site=opt/venv/lib/python3.11/site-packages
# Archives for a static link; nothing links here.
find /$site -name '*.a' -delete
move() { # LAYER NAME...
  layer=/layers/$1/$site
  mkdir -p "$layer"
  shift
  for name in "$@"; do
    [ ! -e "/$site/$name" ] || mv "/$site/$name" "$layer/"
  done
}
move cuda nvidia cuda
move torch torch torchvision torchaudio triton
move vllm vllm
mkdir -p /layers/python/opt
mv /opt/venv /layers/python/opt/venv
