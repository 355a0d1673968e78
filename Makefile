# Turnkeep. `make` lists what there is; `make run` needs only Python 3.11 or newer.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

UV_VERSION := 0.13.8
WORKERS ?= 2
FILE ?=
K ?=
PYTHON ?=
BENCH ?=
TYPESCRIPT := openapi/clients/typescript
ADVISORIES ?=

BIN := .venv/bin
UV_STAMP := .venv/.uv-$(UV_VERSION)
CACHES := .pytest_cache .ruff_cache .hypothesis .import_linter_cache .schemathesis

export UV_PROJECT_ENVIRONMENT := .venv
export UV_PYTHON := .venv/bin/python
export UV_PYTHON_DOWNLOADS := never
# compile packages once, when they are installed, instead of in every process where Python may write no bytecode
export UV_COMPILE_BYTECODE := 1
unexport PYTHONDONTWRITEBYTECODE
export UV_NO_PROGRESS ?= $(if $(CI),1,)
ifeq ($(UV_NO_PROGRESS),)
unexport UV_NO_PROGRESS
endif

# A venv whose Python has gone (upgraded, moved) cannot be repaired, only made anew.
ifneq ($(shell [ -e .venv ] && ! $(BIN)/python -c '' 2>/dev/null && rm -rf .venv && echo broken),)
$(info .venv had lost its Python; it is made anew.)
endif

.PHONY: help run test test-slow check check-bounds soak ecosystem bench bench-peers assets wheels sbom advisories lint types imports migrations-lint openapi-lint asyncapi-lint clients clients-check openapi error-page reference docs dashboard dashboard-check pictures dev clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: .venv/.run assets ## start the service with its own Postgres, on http://127.0.0.1:8765
	@exec $(BIN)/turnkeep serve

# FILE: files, folders or tests; K: a part of their names. Those run with their slow tests, in one process.
test: .venv/.dev assets ## run the tests; some: make test FILE=tests/api/test_fork.py, make test K=fork
ifeq ($(FILE)$(K),)
	OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) -m "not slow and not soak"
else
	OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 0 -m "not soak" $(FILE) $(if $(K),-k "$(K)")
endif

test-slow: .venv/.dev assets ## run the tests that take some seconds each
	OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) -m "slow and not soak"

check: lint types imports migrations-lint openapi-lint asyncapi-lint clients-check dashboard-check docs test test-slow ## everything that must hold before a commit

lint: .venv/.dev ## style and likely mistakes (ruff)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: .venv/.dev ## types (basedpyright, strict); in the tests, only names and calls
	$(BIN)/basedpyright
	$(BIN)/basedpyright --project tests/pyrightconfig.json

imports: .venv/.dev ## which way modules may depend (import-linter)
	$(BIN)/lint-imports

# A file in between, so that a failure of the first command is one of the target.
migrations-lint: .venv/.dev ## locks and rewrites in the migrations' SQL (squawk)
	@$(BIN)/turnkeep migrate --sql > .venv/migrations.sql
	$(BIN)/squawk --config .squawk.toml .venv/migrations.sql

openapi-lint: tests/openapi/node_modules/.stamp ## the OpenAPI document, by Redocly and Spectral (node)
	@cd tests/openapi && REDOCLY_SUPPRESS_UPDATE_NOTICE=true npm run --silent lint

asyncapi-lint: tests/asyncapi/node_modules/.stamp ## the AsyncAPI document, by its own parser (node)
	@cd tests/asyncapi && node validate.mjs < ../../openapi/asyncapi.json

clients: .venv/.dev $(TYPESCRIPT)/node_modules/.stamp ## write the generated parts of the client libraries (node)
	@$(BIN)/python -m scripts.clients openapi/clients
	@cd $(TYPESCRIPT) && npm run --silent generate -- --silent

clients-check: .venv/.dev $(TYPESCRIPT)/node_modules/.stamp ## that the client libraries are current and compile (node)
	@made=$$(mktemp -d) && $(BIN)/python -m scripts.clients "$$made" \
	&& (cd $(TYPESCRIPT) && TURNKEEP_CLIENT_OUT="$$made/typescript/src/generated/api" npm run --silent generate -- --silent) \
	&& diff -r -x __pycache__ "$$made/python/src/turnkeep_client/generated" openapi/clients/python/src/turnkeep_client/generated \
	&& diff -r "$$made/typescript/src/generated" $(TYPESCRIPT)/src/generated; \
	status=$$?; rm -rf "$$made"; [ $$status -eq 0 ] || echo 'The client libraries are not current: make clients' >&2; exit $$status
	@cd $(TYPESCRIPT) && npm run --silent check

dashboard: dashboard/node_modules/.stamp ## build the dashboard into app/dashboard/built (node)
	@cd dashboard && npm run --silent build

# Into a temporary folder, so that the check changes nothing.
dashboard-check: dashboard/node_modules/.stamp ## the dashboard's types, and that its built files are current (node)
	@cd dashboard && npm run --silent check
	@built=$$(mktemp -d) && (cd dashboard && DASHBOARD_OUT=$$built npm run --silent build) && diff -r $$built app/dashboard/built; \
	status=$$?; rm -rf "$$built"; [ $$status -eq 0 ] || echo 'The built dashboard is not current: make dashboard' >&2; exit $$status

pictures: .venv/.dev assets ## take the pictures of the dashboard in docs/images (needs Chromium)
	TURNKEEP_TEST_PICTURES=docs/images $(BIN)/pytest -n 0 tests/soak/test_dashboard_pictures.py --timeout 900

soak: .venv/.dev assets dashboard/node_modules/.stamp ## run the long tests (those of the dashboard need node and Chromium)
	TURNKEEP_PROPERTY_EXAMPLES=$${TURNKEEP_PROPERTY_EXAMPLES:-10000} TURNKEEP_COVERAGE_SEEDS=$${TURNKEEP_COVERAGE_SEEDS:-500} \
	$(BIN)/pytest -n 0 tests/properties tests/unit/test_projection.py --timeout 3600
	$(BIN)/pytest -n 0 -m soak --timeout 7200 -s
	$(MAKE) check-bounds

# The bounds of pyproject.toml, not the lock: each run has an environment of its own beside the one of the lock.
check-bounds: .venv/.dev assets ## run the tests with the lowest and with the newest versions that the wheel allows (needs the network)
	@set -e; for versions in lowest-direct highest; do \
	  environment=.venv/bounds-$$versions; \
	  $(BIN)/uv venv --quiet --clear $$environment; \
	  $(BIN)/uv pip compile --quiet --no-header --all-extras --resolution $$versions --no-emit-package turnkeep-minilm \
	    --output-file $$environment/versions.txt pyproject.toml; \
	  $(BIN)/uv pip install --quiet --python $$environment/bin/python --constraint $$environment/versions.txt \
	    --editable '.[multilingual,otel]' --group dev; \
	  echo "Testing with the $$versions versions"; \
	  OPENBLAS_NUM_THREADS=1 $$environment/bin/python -m pytest -n $(WORKERS) -m "not slow and not soak"; \
	done

# The first time it installs each framework and two small chat models into .venv/ecosystem, from the package indexes.
ecosystem: .venv/.dev assets ## run the tests with agent frameworks and with small chat models
	$(BIN)/pytest -n 0 tests/ecosystem --timeout 1200

bench: .venv/.dev assets ## measure everything, and write bench/RESULTS.md (some of it: make bench BENCH="--part reads")
	$(BIN)/python bench/run.py $(BENCH)

bench-peers: .venv/.dev assets ## compare with other systems, installed from PyPI, and add the table to bench/RESULTS.md
	$(BIN)/python bench/compare.py $(BENCH)

assets: $(UV_STAMP) ## fetch and verify the embedding model
	@$(BIN)/python scripts/fetch_assets.py

wheels: $(UV_STAMP) assets ## build the wheels of Turnkeep and of its embedding model, into dist
	$(BIN)/uv build --wheel --all-packages --clear --out-dir dist --quiet

sbom: $(UV_STAMP) ## write dist/turnkeep.cdx.json: the locked packages of an installation, as CycloneDX
	@mkdir -p dist
	@$(BIN)/uv export --frozen --no-default-groups --format cyclonedx1.5 --preview-features sbom-export --quiet --output-file dist/turnkeep.cdx.json

# Not part of `check`: it needs the network, and its answer changes without a commit. uv ends with 1 if a package has an
# advisory, and with 2 if it could not ask.
advisories: $(UV_STAMP) ## look up security advisories for the locked packages (ADVISORIES="--service-url URL": at a mirror)
	@$(BIN)/uv audit --frozen --preview-features audit-command $(ADVISORIES); status=$$?; \
	if [ $$status -gt 1 ]; then \
	  echo 'The advisories were NOT checked: the service (by default https://api.osv.dev) did not answer. Repeat with network access, or name a mirror: make advisories ADVISORIES="--service-url URL"' >&2; \
	fi; exit $$status

error-page: .venv/.dev ## write the page of error codes that a server shows
	@$(BIN)/python -m scripts.site.error_page

reference: .venv/.dev ## write the tables in docs/ that follow from code: settings, errors, tables, round trips
	@$(BIN)/python -m scripts.reference

# Zensical ends with 1 if a link leads to nothing.
docs: .venv/.dev ## build the documentation site into build/docs/site, and check its links
	@$(BIN)/python -m scripts.site build/docs
	@$(BIN)/zensical build --strict --clean --config-file build/docs/zensical.toml

openapi: .venv/.dev ## write openapi/openapi.json and openapi/asyncapi.json
	@for name in openapi asyncapi; do \
	  $(BIN)/turnkeep $$name > openapi/$$name.json.new && mv openapi/$$name.json.new openapi/$$name.json || exit 1; \
	done

dev: .venv/.dev ## install everything for working on Turnkeep

clean: ## remove the venv and caches; never data
	rm -rf .venv dist build $(TYPESCRIPT)/node_modules $(TYPESCRIPT)/dist dashboard/node_modules tests/asyncapi/node_modules tests/openapi/node_modules $(CACHES)
	find app alembic bench packages scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The venv: its own uv first, then what is locked. The stamps keep later runs off the network. Once the tools for
# development are there, `run` keeps them there.
$(UV_STAMP):
	@set -e; \
	if [ -n "$(PYTHON)" ] && ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	  version=$$("$(PYTHON)" --version 2>/dev/null) || version='no Python'; \
	  echo "PYTHON=$(PYTHON) is $$version. Turnkeep needs Python 3.11 or newer: name another one, or leave PYTHON= out." >&2; \
	  exit 1; \
	fi; \
	for candidate in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    python=$$candidate; break; \
	  fi; \
	done; \
	if [ -z "$${python:-}" ]; then \
	  echo 'Turnkeep needs Python 3.11 or newer and found none. Install one, or name it: make run PYTHON=/path/to/python' >&2; \
	  exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then \
	  echo "$$python cannot make a venv. On Debian and Ubuntu: apt install python3-venv" >&2; \
	  exit 1; \
	fi; \
	if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  echo "Making .venv with $$("$$python" --version) ..."; \
	  "$$python" -m venv --clear .venv; \
	fi; \
	if ! $(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: 'uv==$(UV_VERSION)'; then \
	  echo 'uv $(UV_VERSION) could not be installed with pip; is the package index reachable?' >&2; \
	  exit 1; \
	fi
	@touch $@

$(TYPESCRIPT)/node_modules/.stamp: $(TYPESCRIPT)/package-lock.json
	@command -v npm >/dev/null || { echo 'npm is missing. On Debian and Ubuntu: apt install nodejs npm' >&2; exit 1; }
	@cd $(TYPESCRIPT) && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

dashboard/node_modules/.stamp: dashboard/package-lock.json
	@command -v npm >/dev/null || { echo 'npm is missing. On Debian and Ubuntu: apt install nodejs npm' >&2; exit 1; }
	@cd dashboard && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

tests/%/node_modules/.stamp: tests/%/package-lock.json
	@command -v npm >/dev/null || { echo 'npm is missing. On Debian and Ubuntu: apt install nodejs npm' >&2; exit 1; }
	@cd tests/$* && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

.venv/.run: $(UV_STAMP) pyproject.toml uv.lock
	@if [ -e .venv/.dev ]; then $(BIN)/uv sync --frozen; touch .venv/.dev; else $(BIN)/uv sync --frozen --no-dev; fi
	@touch $@

.venv/.dev: $(UV_STAMP) pyproject.toml uv.lock
	@$(BIN)/uv sync --frozen
	@touch .venv/.run $@
