# InferCanary. `make demo` and `make test` need only Python 3.10 to 3.13; everything else is installed into .venv.
PYTHON ?= python3
ARGS ?=
# Number of test processes; 0 runs the tests in the main process: make test WORKERS=0 ARGS="-s -k name"
WORKERS ?= 4
# Test processes for the stack: one for the shared stack, one for tests with separate containers
STACK_WORKERS ?= 2
# Python images set this variable. Then every test process and its children would compile all modules again.
export PYTHONDONTWRITEBYTECODE =
# A smaller torch without CUDA: make demo TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
TORCH_INDEX_URL ?=
PIP = .venv/bin/python -m pip install --disable-pip-version-check --constraint constraints.txt \
	$(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL))

.DEFAULT_GOAL := help
.PHONY: help demo venv test test-stack test-kubernetes campaign causes hostile fuzz coverage mutation lint format docs dashboards check-dashboards pictures demo-picture site release release-files hashes pin chart images servers bench gpu clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/demo ## upgrade a ResNet-18 server on this machine to a slow version, and show the verdict (takes about a minute)
	@.venv/bin/infercanary demo

venv: .venv/dev ## install all development tools into .venv

test: .venv/dev ## run all tests that need no Docker; ARGS="-k name" selects tests
	.venv/bin/python -m pytest -m "not stack and not kubernetes and not campaign" --numprocesses=$(WORKERS) $(ARGS)

test-stack: .venv/dev ## run tests with real containers (Docker with Compose v2, free ports of the stack); ARGS="-k name" selects tests
	.venv/bin/python -m pytest -m "stack and not campaign" --numprocesses=$(STACK_WORKERS) $(ARGS) tests/stack

test-kubernetes: .venv/dev ## run tests on a real Kubernetes cluster of three nodes: KUBECONFIG, or root and the programs that .ci/kubernetes finds
	.venv/bin/python -m pytest -m "kubernetes and not campaign" --numprocesses=0 $(ARGS) tests/kubernetes

campaign: .venv/dev ## run tests that take too long for CI; resumes where it stopped: benchmarks/results/campaign.md
	.venv/bin/python tests/tools/campaign.py $(ARGS)

causes: .venv/dev ## produce each cause ten times with real processes, and check that the verdict names it: benchmarks/results/causes.md
	.venv/bin/python tests/tools/campaign.py --causes $(ARGS)

hostile: .venv/dev ## run each attack on the exporter's connections for ten minutes, in containers; resumes where it stopped
	.venv/bin/python tests/tools/campaign.py -k hostile $(ARGS)

fuzz: .venv/dev ## fuzz each parser of untrusted input for SECONDS=60; failing inputs are kept in tests/fuzz/corpus
	.venv/bin/python tests/fuzz/fuzz.py --seconds $(or $(SECONDS),60) $(ARGS)

coverage: .venv/dev ## measure branch coverage of both test suites and their child processes, by file
	rm -f .coverage .coverage.*
	-.venv/bin/coverage run -m pytest -q -m "not stack and not kubernetes and not campaign" --numprocesses=$(WORKERS) $(ARGS)
	-.venv/bin/coverage run -m pytest -q -m "stack and not campaign" --numprocesses=$(STACK_WORKERS) $(ARGS)
	.venv/bin/coverage combine --quiet
	.venv/bin/coverage report

mutation: .venv/mutation ## mutation testing of judge/, or ARGS="--package store"; resumes where it stopped: benchmarks/results/mutation.md
	.venv/bin/python tests/tools/mutation.py $(ARGS)

lint: .venv/dev ## run ruff, mypy --strict and the import contracts
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/mypy --python-version 3.11 grafana # Grafana's SDK needs Python 3.11
	@# The linter reads only one tree, so both packages are joined as in a wheel.
	@rm -rf build/joined && mkdir -p build/joined && cp -r probe/infercanary exporter/infercanary build/joined
	PYTHONPATH=build/joined .venv/bin/lint-imports --no-cache

format: .venv/dev ## format with ruff, and apply its safe fixes
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

docs: .venv/dev ## write docs/metrics.md and contract/kinds.py from the declarations of the metrics
	.venv/bin/python docs/generate.py

dashboards: .venv/dev ## write Grafana's dashboards and alert rules from the code and Prometheus' rules, and the chart's copies of them
	.venv/bin/python -m grafana.generate
	.venv/bin/python charts/generate.py

chart: .venv/dev ## write the Helm chart's copies and README, and the plain manifests of deploy/kubernetes
	.venv/bin/python charts/generate.py

check-dashboards: .venv/dev grafana/check/node_modules ## list faults of the dashboards, as Grafana would show them; ARGS="--board fleet --situation upgraded"
	.venv/bin/python -m grafana.check $(ARGS)

pictures: .venv/dev ## write docs/img: each page at two widths, light and dark, with Chromium (apt-get install chromium)
	.venv/bin/python -m docs.pictures

demo-picture: .venv/dev ## record docs/img/demo.svg, the terminal of `make demo`
	.venv/bin/python -m docs.demo_picture

site: .venv/site ## build the docs as a site in build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build

release: .venv/dev ## build packages and images of this version, and try them on each installed Python: release/README.md
	.venv/bin/python -m release.build

release-files: .venv/dev ## write exporter/infercanary.cdx.json, the wheel's bill of materials
	.venv/bin/python -m release.sbom

hashes: .venv/dev ## write the SHA-256 of each file that the images install; needed after a change of constraints.txt
	.venv/bin/python -m release.hashes

pin: .venv/dev ## write compose.pinned.yml with the current digest of each image of the Compose file; needed at a release
	.venv/bin/python -m release.pin

images: ## build the images of the Compose file (otherwise test-stack builds them)
	DOCKER_BUILDKIT=0 docker compose build --quiet classify # sequential, because the images share layers
	DOCKER_BUILDKIT=0 docker compose --profile broken build --quiet exporter broken-upgrade
	DOCKER_BUILDKIT=0 docker build --quiet --tag infercanary-probe:dev --file probe/Dockerfile .

servers: .venv/dev ## install the real inference servers (otherwise the tests install them)
	.venv/bin/python tests/integration/probe/modules/real_servers.py

bench: .venv/dev ## measure speed and cost, compared with other programs
	.venv/bin/python benchmarks/exposition.py
	.venv/bin/python benchmarks/overhead.py
	.venv/bin/python benchmarks/probe_cost.py
	.venv/bin/python benchmarks/onnx_profiler.py
	.venv/bin/python benchmarks/gpu.py
	.venv/bin/python benchmarks/steady.py
	.venv/bin/python benchmarks/judging.py
	.venv/bin/python benchmarks/verdicts.py
	.venv/bin/python benchmarks/fleet.py

gpu: ## check the claims about GPUs on this machine with PYTHON; resumes from STATE; DEVICE=cpu tries only the logic, STEP=name runs one step
	PYTHONPATH="$(CURDIR)/probe:$(CURDIR)/exporter:$(CURDIR)/benchmarks" $(PYTHON) -m gpu_claims --state $(or $(STATE),gpu.json) \
		$(if $(DEVICE),--device $(DEVICE)) $(if $(STEP),--step $(STEP)) $(if $(SCALE),--scale $(SCALE)) $(ARGS)

clean: ## remove installed and cached files of this checkout
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis

%/check/node_modules: %/check/package-lock.json
	@command -v npm >/dev/null || { echo "no npm: apt-get install nodejs npm"; exit 2; }
	npm ci --prefix $*/check --no-audit --no-fund
	@touch $@

.venv/bin/python:
	@echo "Making a virtual environment in .venv with $(PYTHON) …"
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "$(PYTHON) is not Python 3.10 to 3.13; choose another: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 2; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; echo "no virtual environment: install python3-venv"; exit 2; }

.venv/demo: .venv/bin/python pyproject.toml constraints.txt
	@echo "Installing InferCanary and torch into .venv; the first installation takes some minutes …"
	@$(if $(TORCH_INDEX_URL),,echo "(On Linux, this torch includes CUDA, several GB. For a small torch without CUDA, see TORCH_INDEX_URL in the README.)")
	$(PIP) --editable '.[demo]'
	@touch $@

.venv/dev: .venv/bin/python pyproject.toml constraints.txt
	@echo "Installing InferCanary and its development tools into .venv …"
	$(PIP) --editable '.[dev]'
	@touch $@ .venv/demo

.venv/site: .venv/dev
	$(PIP) --editable '.[dev,site]'
	@touch $@

.venv/mutation: .venv/dev
	$(PIP) --editable '.[dev,mutation]'
	@touch $@
