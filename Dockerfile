# Targets: v100, portable (vLLM on CPUs), sidecar. `make image` and `make image-sidecar` build them; BuildKit is wanted.
# base → tools → wheels, kernels → tree → bill and audit → image. No stage needs more than Debian's and Python's package indexes;
# behind a proxy give http_proxy and https_proxy, and the secret `ca` where it re-signs TLS.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS base
RUN export DEBIAN_FRONTEND=noninteractive \
 && apt-get update -qq && apt-get upgrade -qq -y \
 && apt-get install -qq -y --no-install-recommends python3.11 \
 && apt-get clean && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* /usr/share/doc/*/changelog* \
 && rm -rf /usr/lib/python3.11/lib2to3 /usr/lib/python3.11/pydoc_data /usr/lib/python3.11/test \
 && find / -xdev -perm /6000 -type f -exec chmod ug-s {} +

# uv, the build backend and what writes the bill of materials, by hash.
FROM base AS tools
RUN export DEBIAN_FRONTEND=noninteractive \
 && apt-get update -qq && apt-get install -qq -y --no-install-recommends libpython3.11-dev python3.11-venv
COPY config/image/fetch.sh config/image/tools.txt config/requirements/bootstrap.txt /build/
ARG INDEX_URL
ENV UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
RUN --mount=type=secret,id=ca --mount=type=cache,id=uv,target=/root/.cache/uv \
    python3.11 -m venv /opt/tools \
 && /build/fetch.sh /opt/tools/bin/pip install -q --disable-pip-version-check --no-cache-dir --no-deps --require-hashes -r /build/bootstrap.txt \
 && /build/fetch.sh /opt/tools/bin/uv pip install -q --python /opt/tools --no-deps --require-hashes -r /build/tools.txt

FROM tools AS wheels-sidecar
COPY config/image/not-in-sidecar.txt config/requirements/sidecar.txt /build/
RUN --mount=type=secret,id=ca --mount=type=cache,id=uv,target=/root/.cache/uv \
    python3.11 -m venv --without-pip /opt/venv \
 && /build/fetch.sh /opt/tools/bin/uv pip install --python /opt/venv --compile-bytecode --no-deps --require-hashes \
      -r /build/sidecar.txt --excludes /build/not-in-sidecar.txt

# What keeps one GPU's device code in the libraries, and no more of our code: the wheels stay when the rest changes.
FROM tools AS shrinker
COPY config/image/layers.sh config/image/not-in-images.txt config/image/not-on-volta.txt /build/
COPY appliance/__init__.py appliance/errors.py /build/appliance/
COPY appliance/image/__init__.py appliance/image/elf.py appliance/image/fatbin.py appliance/image/shrink.py /build/appliance/image/
ENV PYTHONPATH=/build PYTHONDONTWRITEBYTECODE=1

FROM shrinker AS wheels-portable
COPY config/requirements/portable.txt /build/
RUN --mount=type=secret,id=ca --mount=type=cache,id=uv,target=/root/.cache/uv \
    python3.11 -m venv --without-pip /opt/venv \
 && /build/fetch.sh /opt/tools/bin/uv pip install --python /opt/venv --compile-bytecode --no-deps --require-hashes \
      -r /build/portable.txt --excludes /build/not-in-images.txt \
 && python3.11 -m appliance.image.shrink --gpu 0 /opt/venv && /build/layers.sh

FROM shrinker AS wheels-v100
COPY config/requirements/v100.txt /build/
RUN --mount=type=secret,id=ca --mount=type=cache,id=uv,target=/root/.cache/uv \
    python3.11 -m venv --without-pip /opt/venv \
 && /build/fetch.sh /opt/tools/bin/uv pip install --python /opt/venv --compile-bytecode --no-deps --require-hashes \
      -r /build/v100.txt --excludes /build/not-in-images.txt --excludes /build/not-on-volta.txt \
 # For Hopper alone. Of the two variants of FlashAttention one must be there for vLLM to be imported.
 && rm /opt/venv/lib/python3.11/site-packages/vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so \
 && python3.11 -m appliance.image.shrink --gpu 70 /opt/venv && /build/layers.sh

# The SM70 kernels, compiled by NVRTC out of the locked wheels: no CUDA toolkit.
FROM tools AS kernels
COPY config/requirements/v100.txt /build/
RUN --mount=type=secret,id=ca --mount=type=cache,id=uv,target=/root/.cache/uv \
    python3.11 -m venv --without-pip /opt/venv \
 && /build/fetch.sh /opt/tools/bin/uv pip install -q --python /opt/venv --no-deps --verify-hashes -c /build/v100.txt \
      cuda-bindings cuda-pathfinder nvidia-cuda-nvrtc-cu12
COPY kernels /build/kernels
RUN cd /build/kernels && /opt/venv/bin/python -m sm70_kernels.build --out /kernels

# What every image is, whatever is in it.
FROM scratch AS runtime
COPY --from=base / /
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/var/lib/appliance/home USER=appliance LOGNAME=appliance \
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

FROM runtime AS sidecar-tree
COPY --from=wheels-sidecar /opt/venv /opt/venv
COPY . /opt/appliance
RUN --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools /opt/appliance/config/image/install.sh

FROM runtime AS portable-tree
# libnuma: vLLM's CPU operators are linked to it. The others: Inductor compiles the sampler with them (openssl hashes its
# precompiled headers).
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends g++ libnuma1 libpython3.11-dev openssl \
 && apt-get clean && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/*
COPY --from=wheels-portable /layers/cuda /
COPY --from=wheels-portable /layers/torch /
COPY --from=wheels-portable /layers/vllm /
COPY --from=wheels-portable /layers/python /
COPY . /opt/appliance
RUN --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools /opt/appliance/config/image/install.sh

FROM runtime AS v100-tree
# Triton compiles a small C launcher for each kernel on its first use, with gcc and Python's headers; Inductor's code for
# a GPU needs nothing else.
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends gcc libc6-dev \
 && apt-get clean && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/*
COPY --from=tools /usr/include/python3.11 /usr/include/python3.11
COPY --from=tools /usr/include/x86_64-linux-gnu/python3.11 /usr/include/x86_64-linux-gnu/python3.11
COPY --from=wheels-v100 /layers/cuda /
COPY --from=wheels-v100 /layers/torch /
COPY --from=wheels-v100 /layers/vllm /
COPY --from=wheels-v100 /layers/python /
COPY . /opt/appliance
COPY --from=kernels /kernels /opt/appliance/build/kernels
RUN --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools /opt/appliance/config/image/install.sh

# The bill of materials is written beside each image, which does not hold what writes it.
FROM tools AS bills
COPY appliance/__init__.py appliance/errors.py /build/appliance/
COPY appliance/image/__init__.py appliance/image/sbom.py /build/appliance/image/
ARG SOURCE_DATE_EPOCH
ENV PYTHONPATH=/build PYTHONDONTWRITEBYTECODE=1

FROM bills AS bill-sidecar
RUN --mount=type=bind,from=sidecar-tree,source=/,target=/image \
    /opt/tools/bin/python -m appliance.image.sbom --root /image --target sidecar --output /sbom.cdx.json
FROM sidecar-tree AS audit-sidecar
RUN python -m appliance.image.audit --target sidecar > /audit.txt && cat /audit.txt

FROM bills AS bill-portable
RUN --mount=type=bind,from=portable-tree,source=/,target=/image \
    /opt/tools/bin/python -m appliance.image.sbom --root /image --target portable --output /sbom.cdx.json
FROM portable-tree AS audit-portable
RUN python -m appliance.image.audit --target portable > /audit.txt && cat /audit.txt

FROM bills AS bill-v100
RUN --mount=type=bind,from=v100-tree,source=/,target=/image \
    /opt/tools/bin/python -m appliance.image.sbom --root /image --target v100 --output /sbom.cdx.json
FROM v100-tree AS audit-v100
RUN python -m appliance.image.audit --target v100 > /audit.txt && cat /audit.txt

FROM sidecar-tree AS sidecar
COPY --from=bill-sidecar /sbom.cdx.json /opt/appliance/
COPY --from=audit-sidecar /audit.txt /opt/appliance/
ARG BASE
ARG BASE_DIGEST
ARG CREATED
ARG REVISION=unknown
ARG VERSION
ENV APPLIANCE_IMAGE=sidecar-${REVISION}
LABEL org.opencontainers.image.title="V100 appliance: health, metadata and compile cache" \
      org.opencontainers.image.description="Serves Qwen3.8-27B on four V100s: upstream vLLM, SM70 kernels, and a control plane that explains itself" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="${BASE}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}"
USER 10001:0
EXPOSE 8001
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["python3", "-ISc", "import os, urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://127.0.0.1:' + (os.environ.get('APPLIANCE_SIDECAR_PORT') or '8001') + '/v1/version', timeout=4)"]
CMD ["sidecar"]

FROM portable-tree AS portable
COPY --from=bill-portable /sbom.cdx.json /opt/appliance/
COPY --from=audit-portable /audit.txt /opt/appliance/
ARG BASE
ARG BASE_DIGEST
ARG CREATED
ARG REVISION=unknown
ARG VERSION
ENV APPLIANCE_IMAGE=portable-${REVISION}
LABEL org.opencontainers.image.title="V100 appliance: engine for CPUs" \
      org.opencontainers.image.description="Serves Qwen3.8-27B on four V100s: upstream vLLM, SM70 kernels, and a control plane that explains itself" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="${BASE}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}"
USER 10001:0
EXPOSE 8000 8001
HEALTHCHECK --interval=10s --timeout=5s --start-period=600s CMD ["/opt/appliance/healthchecks/ready"]
CMD ["serve"]

FROM v100-tree AS v100
COPY --from=bill-v100 /sbom.cdx.json /opt/appliance/
COPY --from=audit-v100 /audit.txt /opt/appliance/
ARG BASE
ARG BASE_DIGEST
ARG CREATED
ARG REVISION=unknown
ARG VERSION
ENV APPLIANCE_IMAGE=v100-${REVISION}
LABEL org.opencontainers.image.title="V100 appliance: engine for V100s" \
      org.opencontainers.image.description="Serves Qwen3.8-27B on four V100s: upstream vLLM, SM70 kernels, and a control plane that explains itself" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="${BASE}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}"
# For the NVIDIA container runtime; CDI needs neither.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:0
EXPOSE 8000 8001
HEALTHCHECK --interval=10s --timeout=5s --start-period=2700s CMD ["/opt/appliance/healthchecks/ready"]
CMD ["serve"]
