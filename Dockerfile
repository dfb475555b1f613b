# The gateway, and everything else that `turnpike` does, as an image.
#
#   docker build --target cpu -t turnpike:0.2.0 .                   beside servers of its stores: compose, Kubernetes
#   docker build --target standalone -t turnpike:0.2.0-standalone . by itself: with the embedded store of usage, 0.5 GB more
#   docker build --target gpu -t turnpike:0.2.0-gpu .
#
# It runs as user 10001 on a read-only root file system: what it keeps goes to /var/lib/turnpike, what it could fetch or
# make again to /var/cache/turnpike, and /tmp has to be a tmpfs. The first two are for volumes; none is declared, as one
# that nobody named is lost with its container, and so would be the usage in it.

FROM python:3.11.15-slim-bookworm AS base
RUN groupadd --gid 10001 turnpike \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/turnpike --shell /usr/sbin/nologin turnpike \
    && install -d -m 0700 -o turnpike -g turnpike /var/lib/turnpike /var/cache/turnpike
ENV PATH=/opt/turnpike/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    TURNPIKE_DATA_DIR=/var/lib/turnpike \
    TURNPIKE_MODELS_DIR=/var/cache/turnpike/models \
    TURNPIKE_HOST=0.0.0.0 \
    TURNPIKE_PORT=8080 \
    TURNPIKE_LOG_FORMAT=json
WORKDIR /var/lib/turnpike
EXPOSE 8080
STOPSIGNAL SIGTERM
# Ready once the models are loaded; the first start fetches them.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/readyz', timeout=4)"]
ENTRYPOINT ["turnpike"]
CMD ["serve"]

# What a compiler makes is made here; no later stage has one for it.
FROM python:3.11.15-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml setup.py README.md LICENSE requirements-build.lock ./
COPY engine ./engine
COPY gateway ./gateway
COPY kernels ./kernels
COPY migrations ./migrations
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* \
    && pip install --no-cache-dir --no-deps --require-hashes -r requirements-build.lock \
    && pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

# What a lock names, with its hashes, and nothing beyond it: no pip, and none of the packages' own tests. Bytecode stays: the
# root cannot be written, and without it each start compiles all that it imports. Serving on a CPU takes no torch.
FROM python:3.11.15-slim-bookworm AS locked-cpu
WORKDIR /src
COPY requirements.lock ./
RUN python -m venv --without-pip /opt/turnpike \
    && pip --python /opt/turnpike/bin/python install --no-cache-dir --no-deps --require-hashes -r requirements.lock \
    && find /opt/turnpike -type d -name tests -prune -exec rm -r {} +

FROM locked-cpu AS packages-standalone
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip --python /opt/turnpike/bin/python install --no-cache-dir --no-deps /wheels/turnpike-*.whl

FROM packages-standalone AS packages-cpu
RUN pip --python /opt/turnpike/bin/python uninstall --yes chdb-core

FROM python:3.11.15-slim-bookworm AS locked-gpu
WORKDIR /src
COPY requirements-gpu.lock ./
RUN python -m venv /opt/turnpike \
    && /opt/turnpike/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements-gpu.lock

# torch is in no lock, as each of its builds has other hashes. The index's own is built for CUDA: it finds what it needs in
# the lock, and brings itself and CUDA's libraries; only the driver comes from the host.
FROM locked-gpu AS torch-gpu
RUN /opt/turnpike/bin/pip install --no-cache-dir torch==2.13.0

FROM torch-gpu AS packages-gpu
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    /opt/turnpike/bin/pip install --no-cache-dir --no-deps /wheels/turnpike-*.whl

FROM base AS gpu
# Triton compiles a small C file at its first start, against the driver that it finds: without a C compiler no kernel runs.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY --from=packages-gpu /opt/turnpike /opt/turnpike
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    TRITON_CACHE_DIR=/var/cache/turnpike/triton \
    TURNPIKE_DEVICE=cuda
USER 10001:10001

FROM base AS standalone
COPY --from=packages-standalone /opt/turnpike /opt/turnpike
USER 10001:10001

# Last, so that it is what a build without --target makes.
FROM base AS cpu
COPY --from=packages-cpu /opt/turnpike /opt/turnpike
USER 10001:10001
