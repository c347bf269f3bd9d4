# Targets: v100, portable (vLLM on CPUs), sidecar. `make image` and `make image-sidecar` build them; BuildKit is wanted.
# base → tools → wheels → kernels → engine → appliance. No stage needs more than Debian's and Python's package indexes;
# behind a proxy give http_proxy and https_proxy, and the secret `ca` where it re-signs TLS.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS base
RUN export DEBIAN_FRONTEND=noninteractive \
 && apt-get update -qq && apt-get upgrade -qq -y \
 && apt-get install -qq -y --no-install-recommends python3.11 \
 && apt-get clean && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* /usr/share/doc/*/changelog* \
 && find / -xdev -perm /6000 -type f -exec chmod ug-s {} +

# uv and the build backend, by hash.
FROM base AS tools
RUN export DEBIAN_FRONTEND=noninteractive \
 && apt-get update -qq && apt-get install -qq -y --no-install-recommends python3.11-venv
COPY config/image/fetch.sh config/requirements/bootstrap.txt config/requirements/sidecar.txt config/requirements/portable.txt /build/
ARG INDEX_URL
ENV UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
RUN --mount=type=secret,id=ca --mount=type=cache,id=uv,target=/root/.cache/uv \
    python3.11 -m venv /opt/tools \
 && /build/fetch.sh /opt/tools/bin/pip install -q --disable-pip-version-check --no-cache-dir --no-deps --require-hashes -r /build/bootstrap.txt \
 && /build/fetch.sh /opt/tools/bin/uv pip install -q --python /opt/tools --no-deps --verify-hashes -c /build/portable.txt setuptools

FROM tools AS wheels-sidecar
RUN --mount=type=secret,id=ca --mount=type=cache,id=uv,target=/root/.cache/uv \
    python3.11 -m venv --without-pip /opt/venv \
 && /build/fetch.sh /opt/tools/bin/uv pip install --python /opt/venv --compile-bytecode --no-deps --require-hashes -r /build/sidecar.txt

FROM tools AS wheels-portable
COPY config/image/not-in-images.txt /build/
COPY appliance/__init__.py appliance/errors.py /build/appliance/
COPY appliance/image/__init__.py appliance/image/elf.py appliance/image/fatbin.py appliance/image/shrink.py /build/appliance/image/
RUN --mount=type=secret,id=ca --mount=type=cache,id=uv,target=/root/.cache/uv \
    python3.11 -m venv --without-pip /opt/venv \
 && /build/fetch.sh /opt/tools/bin/uv pip install --python /opt/venv --compile-bytecode --no-deps --require-hashes \
      -r /build/portable.txt --excludes /build/not-in-images.txt \
 && PYTHONPATH=/build python3.11 -m appliance.image.shrink --gpu 0 /opt/venv

# What every image is, whatever is in it.
FROM base AS runtime
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/var/lib/appliance/home \
    PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 \
    APPLIANCE_STATE_DIR=/var/lib/appliance \
    APPLIANCE_RUN_DIR=/run/appliance \
    APPLIANCE_HOST=0.0.0.0
# Any user id may be given, so these folders are everybody's, as /tmp is; a new volume takes that over.
RUN mkdir -p -m 1777 /var/lib/appliance /var/lib/appliance/cache /run/appliance /models
WORKDIR /var/lib/appliance
VOLUME /var/lib/appliance
STOPSIGNAL SIGTERM
ENTRYPOINT ["appliance"]

FROM runtime AS sidecar
COPY --from=wheels-sidecar /opt/venv /opt/venv
COPY . /opt/appliance
RUN --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools /opt/appliance/config/image/install.sh
USER 10001:0
EXPOSE 8001
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["python3", "-ISc", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + (os.environ.get('APPLIANCE_SIDECAR_PORT') or '8001') + '/v1/version', timeout=4)"]
CMD ["sidecar"]

FROM runtime AS portable
# libnuma: vLLM's CPU operators are linked to it.
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends libnuma1 \
 && apt-get clean && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/*
COPY --from=wheels-portable /opt/venv /opt/venv
COPY . /opt/appliance
RUN --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools /opt/appliance/config/image/install.sh
USER 10001:0
EXPOSE 8000 8001
HEALTHCHECK --interval=10s --timeout=5s --start-period=600s CMD ["/opt/appliance/healthchecks/ready"]
CMD ["serve"]
