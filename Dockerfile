# The service and the compactor in one image, as a user without rights.
#
#   docker build -t tailrace .
#   docker run -p 127.0.0.1:8790:8790 -v tailrace:/data tailrace
#
# Inside the container it listens on all addresses. Without rules of access (`access.rules`) it lets
# everybody read and write, so publish the port only where those are who may.

FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/tailrace
WORKDIR /build
COPY requirements/run.txt requirements/spark.txt requirements/
RUN /opt/tailrace/bin/pip install --no-cache-dir --require-hashes --no-build-isolation \
        -r requirements/run.txt \
    && /opt/tailrace/bin/pip install --no-cache-dir --require-hashes --no-build-isolation \
        -r requirements/spark.txt
COPY client client
COPY pyproject.toml README.md LICENSE ./
COPY service service
COPY compactor compactor
COPY tailrace tailrace
RUN /opt/tailrace/bin/pip install --no-cache-dir --no-deps --no-build-isolation ./client .

# What Spark needs for S3, 23 MB, so that a container fetches nothing when it starts.
FROM build AS jars
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
COPY requirements/jars.sha256 requirements/
WORKDIR /opt/jars
RUN /opt/tailrace/bin/python -m compactor.spark.s3 /opt/jars \
    && sha256sum --check --strict --quiet /build/requirements/jars.sha256

FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
# Which patch of the runtime is Debian's to say: pinning it would keep its security fixes out.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --home-dir /data tailrace \
    && install -d -o tailrace -g tailrace /data
COPY --from=build /opt/tailrace /opt/tailrace
COPY --from=jars /opt/jars /opt/tailrace/jars
ENV PATH=/opt/tailrace/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TAILRACE_COMPACTION__JARS=/opt/tailrace/jars \
    TAILRACE_DATA=/data \
    TAILRACE_SERVER__HOST=0.0.0.0 \
    TAILRACE_SERVER__INSECURE=true
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8790
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8790/health/live', timeout=2)"]
ENTRYPOINT ["tini", "--", "tailrace"]
CMD ["serve"]
