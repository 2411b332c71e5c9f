# The command list: `make` prints it, CI runs the same commands.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup run dev test check bench demo torture damage clients collector doors sim fuzz lock dist wheels docs manifests site page picture openapi clean

PY := .venv/bin/python
DATA ?= data
KILLS ?= 20
OF ?= service
STORE ?= $(if $(filter nodes,$(OF)),minio,local)
SEED ?=
COUNT ?=
SECONDS ?=
BENCH ?=
PROCESSES ?= 4
NPM := page/node_modules/.package-lock.json
ARGS ?=

# Tests start hundreds of processes, each of which would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

help: ## This list
	@awk 'BEGIN {FS = ":.*## "} \
		/^##@ / {printf "\n%s\n", substr($$0, 5); next} \
		/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Use
setup: ## Make .venv with what running needs, and pyspark (430 MB) where Java 17 is found
	@.ci/setup run

run: ## Serve on 127.0.0.1:8790 with a store under ./data; it compacts if `make setup` found Java 17
	@.ci/setup serve
	@exec $(PY) -m tailrace serve --data $(DATA) $(ARGS)

demo: setup ## Post 13 logs, kill -9, restart, close, compact twice, compare every byte
	@$(PY) -m tests.e2e.demo $(ARGS)

$(NPM): page/package.json page/package-lock.json
	@cd page && npm ci --silent
	@touch $@

##@ Develop
dev: ## Make .venv with the tools for tests and checks
	@.ci/setup dev

test: dev ## All tests that this machine can run, PROCESSES=4; CI=true: leaving one out is a failure
	@$(PY) -m pytest --numprocesses $(PROCESSES) --dist worksteal $(ARGS)

check: dev $(NPM) ## Lint, types, layers, the page's files, the documents' links, sentences of documents and messages, Dockerfile, compose file, uvicorn's newest release
	@$(PY) -m ruff check .
	@$(PY) -m mypy
	@.venv/bin/lint-imports --no-logo
	@cd page && npm run --silent check
	@.venv/bin/hadolint Dockerfile
	@.venv/bin/yamllint --strict docker-compose.yml .github
	@.venv/bin/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/feature.yml
	@.venv/bin/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml
	@$(PY) -m docs.prose
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet
	@.ci/newest-uvicorn
	@.venv/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

torture: dev ## kill -9 at random moments: KILLS=20, SEED=, STORE=local, minio or faults, OF=compactor, nodes, pipelines or forwarder
	@$(PY) -m tests.$(if $(filter service,$(OF)),e2e,$(OF)).torture --store $(STORE) --kills $(KILLS) $(if $(SEED),--seed $(SEED)) $(ARGS)

damage: dev ## The matrix of damage: each stored object removed, emptied, cut, changed; ARGS=--write or --check
	@$(PY) -m tests.damage $(ARGS)

clients: dev ## OpenMetadata's own clients, both generations (800 MB, cached): STORE=local, minio or faults
	@$(PY) -m tests.e2e.openmetadata --store $(STORE) $(ARGS)

collector: dev ## The appender otlp before a real OpenTelemetry collector, built by its builder (cached)
	@$(PY) -m tests.pipelines.collector $(SEED)

doors: dev ## Real clients of the doors before a proxy that loses replies (Go, the collector, rsyslog; LOGCLI_BIN=)
	@$(PY) -m tests.doors $(ARGS)

sim: dev ## Every case of which a run of the tests takes some, histories of compactors: SEED= others, COUNT= more
	@SIM_ALL=1 $(if $(SEED),TAILRACE_SIM_SEED=$(SEED)) $(if $(COUNT),TAILRACE_SIM_COUNT=$(COUNT)) \
		$(PY) -m pytest $(ARGS) tests/compactor/histories \
		$$(grep -rlE 'import.*(PowerCut|\bsome\b)|in_turn\(' tests --include='test_*.py')

fuzz: dev ## Hostile input to all routes and configurations, requests made up from all routes: SECONDS=300, COUNT=200, SEED=
	@FUZZ_SECONDS=$(or $(SECONDS),300) FUZZ_COUNT=$(or $(COUNT),200) FUZZ_SEED=$(or $(SEED),$$(date +%s)) \
		$(PY) -m pytest -s tests/fuzz tests/e2e/test_requests.py $(ARGS)

bench: dev ## Every figure of the README, or one: BENCH=ingest
	@for name in $(or $(BENCH),ingest outage live pages compaction amplification executors drivers \
		query query_peer query_busy query_growth s3 runs stall leases queue nodes forward); do \
		echo "== $$name"; $(PY) -m benchmarks.$$name $(ARGS) || exit 1; done

##@ Maintain
docs: dev ## Write the reference pages that are made from code
	@$(PY) -m docs.generate

openapi: dev ## Write openapi.yaml from the app
	@$(PY) -m service.http.app > openapi.yaml.new && mv openapi.yaml.new openapi.yaml

page: $(NPM) ## Write service/page from page/ (needs Node.js with npm)
	@cd page && npm run --silent build

manifests: dev ## Write deploy/kubernetes from the Helm chart (Helm is built by Go, cached)
	@$(PY) -m tests.kubernetes.manifests

site: dev ## Build the documentation's site into build/site, and check its links
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet

picture: dev ## Write docs/use/page.png, the picture in the README, from real logs: LOGS=FOLDER (needs Chromium)
	@$(PY) -m tests.page.picture $(LOGS) $(ARGS)

lock: ## Resolve pyproject.toml into requirements/*.txt, with hashes (with uv)
	@.ci/lock

dist: dev ## Make the source distributions and wheels of a release in dist/: REPOSITORY=, REF=
	@rm -rf dist && .ci/dist dist

wheels: dev ## Install the wheels with pip for each Python here (600 MB each), and serve from them
	@$(PY) -m tests.install.environments

clean: ## Remove caches and .venv; data stays
	rm -rf .venv build dist *.egg-info */*.egg-info client/build forwarder/build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
