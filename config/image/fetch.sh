#!/bin/sh
# Runs a command inside the build with the builder's certificates and package index. Usage: fetch.sh COMMAND...
# The secret `ca` is a bundle of certificates for a network that re-signs TLS; INDEX_URL names another package index.
set -eu
if [ -s /run/secrets/ca ]; then
  export SSL_CERT_FILE=/run/secrets/ca PIP_CERT=/run/secrets/ca REQUESTS_CA_BUNDLE=/run/secrets/ca
fi
if [ -n "${INDEX_URL-}" ]; then
  export PIP_INDEX_URL="$INDEX_URL" UV_DEFAULT_INDEX="$INDEX_URL"
fi
exec "$@"
