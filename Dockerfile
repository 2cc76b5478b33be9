# Three images from one file: `web` has the pages and the command line and no torch, `worker` trains on NVIDIA GPUs, or on CPUs.
#   docker build --target web .
#   docker build --target worker .
#   docker build --target worker --build-arg DEVICES=cpu .
# All run as the user lathe (10001), so that the data volume has one owner, and keep everything in /data.

# Of the image `worker`: gpu or cpu.
ARG DEVICES=gpu


FROM scratch AS source
COPY pyproject.toml constraints.txt README.md LICENSE /
COPY app /app
COPY worker /worker
COPY training /training
COPY migrations /migrations
COPY static /static


FROM python:3.12-slim-bookworm AS web
RUN useradd --create-home --uid 10001 lathe && install --directory --owner lathe --mode 700 /data
# The dependencies make a layer of their own, which a change of the code leaves as it is.
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN mkdir app worker training migrations static \
    && python -m venv /opt/lathe \
    && /opt/lathe/bin/pip install --no-cache-dir --constraint constraints.txt .
COPY --from=source / ./
RUN /opt/lathe/bin/pip install --no-cache-dir --no-deps --force-reinstall . && rm -rf /src
ENV PATH=/opt/lathe/bin:$PATH PYTHONUNBUFFERED=1 LATHE_DATA_DIR=/data LATHE_HOST=0.0.0.0
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 7860
# Docker leaves the process of a check that took too long; `timeout` ends it.
HEALTHCHECK --interval=10s --timeout=6s --start-period=30s --retries=3 \
    CMD ["timeout", "--signal=KILL", "5", "python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7860/healthz', timeout=4)"]
CMD ["lathe", "web"]


# The systems below the image `worker`. g++ compiles DeepSpeed's operators at first use; libaio reads and writes what is offloaded to
# NVMe disks.

# torch's wheels for CPUs lack 3 GB of CUDA libraries.
FROM python:3.12-slim-bookworm AS system-cpu
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libaio-dev \
    && rm -rf /var/lib/apt/lists/*
ENV PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu


# The CUDA release is that of the torch pinned in constraints.txt. The image with nvcc is needed: DeepSpeed compiles with it.
FROM nvidia/cuda:13.0.2-devel-ubuntu24.04 AS system-gpu
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libaio-dev python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*


# Their versions are named above.
# hadolint ignore=DL3006
FROM system-${DEVICES} AS worker
RUN useradd --create-home --uid 10001 lathe && install --directory --owner lathe --mode 700 /data /cache
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN mkdir app worker training migrations static \
    && python3 -m venv /opt/lathe \
    && /opt/lathe/bin/pip install --no-cache-dir --constraint constraints.txt ".[train]"
COPY --from=source / ./
RUN /opt/lathe/bin/pip install --no-cache-dir --no-deps --force-reinstall . && rm -rf /src
ENV PATH=/opt/lathe/bin:$PATH PYTHONUNBUFFERED=1 LATHE_DATA_DIR=/data \
    HF_HOME=/cache/huggingface TORCH_EXTENSIONS_DIR=/cache/torch_extensions TRITON_CACHE_DIR=/cache/triton
USER 10001
WORKDIR /data
VOLUME ["/data", "/cache"]
# The shell fills in $HOSTNAME.
# hadolint ignore=DL3025
HEALTHCHECK --interval=60s --timeout=20s --start-period=60s --retries=3 \
    CMD timeout --signal=KILL 18 celery --app worker.queue.tasks inspect ping --destination celery@$HOSTNAME --timeout 10
CMD ["lathe", "worker", "--drain"]
