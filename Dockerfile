# The service and the compactor, as a user without rights, in two images: with Spark, which makes the
# table, and slim, without Spark and Java, which does everything else.
#
#   docker build -t tailrace .
#   docker build --target slim -t tailrace:slim .
#   docker run -p 127.0.0.1:8790:8790 -v tailrace:/data tailrace
#
# Inside the container it listens on all addresses. Without rules of access (`access.rules`) it lets
# everybody read and write, so publish the port only where those are who may.

FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/tailrace
WORKDIR /build
COPY requirements/run.txt requirements/
RUN /opt/tailrace/bin/pip install --no-cache-dir --require-hashes --no-build-isolation \
        -r requirements/run.txt
COPY client client
COPY forwarder forwarder
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY service service
COPY compactor compactor
COPY tailrace tailrace
RUN /opt/tailrace/bin/pip install --no-cache-dir --no-deps --no-build-isolation ./client ./forwarder .

# What Spark needs for S3, 23 MB, so that a container fetches nothing when it starts.
FROM build AS with-spark
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
COPY requirements/spark.txt requirements/jars.sha256 requirements/
RUN /opt/tailrace/bin/pip install --no-cache-dir --require-hashes --no-build-isolation \
        -r requirements/spark.txt
WORKDIR /opt/tailrace/jars
RUN /opt/tailrace/bin/python -m compactor.spark.s3 /opt/tailrace/jars \
    && sha256sum --check --strict --quiet /build/requirements/jars.sha256

FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b AS base
# Which patch is Debian's to say: pinning it would keep its security fixes out.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --home-dir /data tailrace \
    && install -d -o tailrace -g tailrace /data
ENV PATH=/opt/tailrace/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TAILRACE_DATA=/data \
    TAILRACE_SERVER__HOST=0.0.0.0 \
    TAILRACE_SERVER__INSECURE=true
WORKDIR /data
VOLUME /data
EXPOSE 8790
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8790/health/live', timeout=2)"]
ENTRYPOINT ["tini", "--", "tailrace"]
CMD ["serve"]

FROM base AS slim
COPY --from=build /opt/tailrace /opt/tailrace
USER 10001

FROM base AS spark
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
COPY --from=with-spark /opt/tailrace /opt/tailrace
ENV TAILRACE_COMPACTION__JARS=/opt/tailrace/jars
USER 10001
