# The image of Turnkeep: Python, what is locked, the embedding model, and nothing that builds. See docs/guides/deploying.md.
# Nothing here needs BuildKit.

# A release names the image with its digest: --build-arg BASE=python:3.11-slim@sha256:… (see CONTRIBUTING.md)
ARG BASE=python:3.11-slim

FROM ${BASE} AS build

# the uv of the Makefile, in a venv of its own: the image keeps neither
RUN python3 -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --only-binary :all: uv==0.13.8
ENV UV_PROJECT_ENVIRONMENT=/opt/turnkeep \
    UV_PYTHON_DOWNLOADS=never \
    UV_LINK_MODE=copy \
    UV_NO_CACHE=1
WORKDIR /src

# the model and its tokenizer, verified by their sha256
COPY packages packages/
COPY scripts/fetch_assets.py scripts/
RUN /opt/build/bin/python scripts/fetch_assets.py

# what is locked, from wheels only: there is no compiler here and none is wanted
COPY pyproject.toml uv.lock ./
RUN /opt/build/bin/uv sync --frozen --no-default-groups --extra otel --no-install-workspace --no-build --python "$(command -v python3)"

# Turnkeep itself and the model, as wheels: the build of the model's fails where its files are not the pinned ones
COPY README.md LICENSE ./
COPY alembic alembic/
COPY app app/
RUN /opt/build/bin/uv sync --frozen --no-default-groups --extra otel --no-editable --compile-bytecode \
 && /opt/turnkeep/bin/turnkeep openapi > /dev/null \
 && /opt/turnkeep/bin/python -P -c 'import sys, turnkeep_minilm; sys.exit(", ".join(turnkeep_minilm.wrong_files()) or None)'


FROM ${BASE}

LABEL org.opencontainers.image.title="Turnkeep" \
      org.opencontainers.image.description="A conversation-memory service: keeps every turn, and builds the context a model should see." \
      org.opencontainers.image.version="0.1.0.dev0" \
      org.opencontainers.image.licenses="MIT"

# initdb wants to know its user by name; the folder is made here so that a fresh volume belongs to that user
RUN groupadd --gid 10001 turnkeep \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin turnkeep \
 && install -d -m 0700 -o turnkeep -g turnkeep /data
COPY --from=build /opt/turnkeep /opt/turnkeep

ENV PATH=/opt/turnkeep/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TURNKEEP_HOST=0.0.0.0 \
    TURNKEEP_PORT=8765 \
    TURNKEEP_DATA_DIR=/data
WORKDIR /data
VOLUME /data
EXPOSE 8765
USER 10001:10001

HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python3", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ['TURNKEEP_PORT']), timeout=4); c.request('GET', '/readyz'); sys.exit(c.getresponse().status != 200)"]

ENTRYPOINT ["turnkeep"]
CMD ["serve"]
