# InferCanary. `make demo` and `make test` need Python 3.10 to 3.13 and nothing else; the rest is installed into .venv.
PYTHON ?= python3
ARGS ?=
# Processes that tests run in; with 0 in this one: make test WORKERS=0 ARGS="-s -k name"
WORKERS ?= 4
# Of the stack's tests: the shared stack in one, containers of their own in the other
STACK_WORKERS ?= 2
# Where it is set, as in images of Python, each process of the tests, and each that they start, would compile all anew.
export PYTHONDONTWRITEBYTECODE =
# A smaller torch without CUDA: make demo TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
TORCH_INDEX_URL ?=
PIP = .venv/bin/python -m pip install --disable-pip-version-check --constraint constraints.txt \
	$(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL))

.DEFAULT_GOAL := help
.PHONY: help demo venv test test-stack test-kubernetes campaign causes hostile fuzz coverage mutation lint format docs dashboards check-dashboards pictures demo-picture site release release-files hashes pin chart images servers bench gpu clean

help: ## this text
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/demo ## an upgrade that makes a ResNet-18 server slow, and the verdict on it: about a minute
	@.venv/bin/infercanary demo

venv: .venv/dev ## everything, into .venv

test: .venv/dev ## all tests that need no Docker; ARGS="-k name" for a part
	.venv/bin/python -m pytest -m "not stack and not kubernetes and not campaign" --numprocesses=$(WORKERS) $(ARGS)

test-stack: .venv/dev ## tests with real containers: Docker with Compose v2, and the stack's ports; ARGS="-k name" for a part
	.venv/bin/python -m pytest -m "stack and not campaign" --numprocesses=$(STACK_WORKERS) $(ARGS) tests/stack

test-kubernetes: .venv/dev ## tests on a real Kubernetes of three nodes: KUBECONFIG, or root and the programs that .ci/kubernetes finds
	.venv/bin/python -m pytest -m "kubernetes and not campaign" --numprocesses=0 $(ARGS) tests/kubernetes

campaign: .venv/dev ## what takes longer than CI may; goes on where it stopped: benchmarks/results/campaign.md
	.venv/bin/python tests/tools/campaign.py $(ARGS)

causes: .venv/dev ## each cause made ten times with real processes, and named: benchmarks/results/causes.md
	.venv/bin/python tests/tools/campaign.py --causes $(ARGS)

hostile: .venv/dev ## each attack on the exporter's connections for ten minutes, in containers; goes on where it stopped
	.venv/bin/python tests/tools/campaign.py -k hostile $(ARGS)

fuzz: .venv/dev ## each door with inputs that are drawn, for SECONDS=60 each; what breaks one is kept in tests/fuzz/corpus
	.venv/bin/python tests/fuzz/fuzz.py --seconds $(or $(SECONDS),60) $(ARGS)

coverage: .venv/dev ## branch coverage of both suites and of the processes that they start, by file
	rm -f .coverage .coverage.*
	-.venv/bin/coverage run -m pytest -q -m "not stack and not kubernetes and not campaign" --numprocesses=$(WORKERS) $(ARGS)
	-.venv/bin/coverage run -m pytest -q -m "stack and not campaign" --numprocesses=$(STACK_WORKERS) $(ARGS)
	.venv/bin/coverage combine --quiet
	.venv/bin/coverage report

mutation: .venv/mutation ## mutation testing of judge/, or ARGS="--package store"; goes on where it stopped: benchmarks/results/mutation.md
	.venv/bin/python tests/tools/mutation.py $(ARGS)

lint: .venv/dev ## ruff, mypy --strict, the import contracts
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/mypy --python-version 3.11 grafana # whose SDK needs it
	@# The linter reads one tree: both are joined as a wheel joins them.
	@rm -rf build/joined && mkdir -p build/joined && cp -r probe/infercanary exporter/infercanary build/joined
	PYTHONPATH=build/joined .venv/bin/lint-imports --no-cache

format: .venv/dev ## ruff's formatting and safe fixes
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

docs: .venv/dev ## docs/metrics.md and contract/kinds.py, from the declarations of the metrics
	.venv/bin/python docs/generate.py

dashboards: .venv/dev ## Grafana's JSON and its alert rules, from the code and from Prometheus' rules; and the chart, which has copies
	.venv/bin/python -m grafana.generate
	.venv/bin/python charts/generate.py

chart: .venv/dev ## the Helm chart's copies and README, and the plain manifests of deploy/kubernetes
	.venv/bin/python charts/generate.py

check-dashboards: .venv/dev grafana/check/node_modules ## what Grafana would show, and faults in it; ARGS="--board fleet --situation upgraded"
	.venv/bin/python -m grafana.check $(ARGS)

pictures: .venv/dev ## docs/img: each page at two widths, light and dark, by Chromium (apt-get install chromium)
	.venv/bin/python -m docs.pictures

demo-picture: .venv/dev ## docs/img/demo.svg: the terminal of `make demo`, from a run of it
	.venv/bin/python -m docs.demo_picture

site: .venv/site ## the pages of docs/ as a site, in build/site; a link that leads nowhere fails it
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build

release: .venv/dev ## packages and images of this version in dist/ and Docker, tried on each Python here: release/README.md
	.venv/bin/python -m release.build

release-files: .venv/dev ## exporter/infercanary.cdx.json, the bill of materials that the wheel carries
	.venv/bin/python -m release.sbom

hashes: .venv/dev ## what the images install, each file by its SHA-256: after a change of constraints.txt
	.venv/bin/python -m release.hashes

pin: .venv/dev ## compose.pinned.yml: each image of the Compose file by the digest that its registry has now; at a release
	.venv/bin/python -m release.pin

images: ## the images of the Compose file, which test-stack builds otherwise
	DOCKER_BUILDKIT=0 docker compose build --quiet classify # one after the other, for they share layers
	DOCKER_BUILDKIT=0 docker compose --profile broken build --quiet exporter broken-upgrade
	DOCKER_BUILDKIT=0 docker build --quiet --tag infercanary-probe:dev --file probe/Dockerfile .

servers: .venv/dev ## the real inference servers that tests start, which install them otherwise
	.venv/bin/python tests/integration/probe/modules/real_servers.py

bench: .venv/dev ## what is fast, measured side by side with a named peer
	.venv/bin/python benchmarks/exposition.py
	.venv/bin/python benchmarks/overhead.py
	.venv/bin/python benchmarks/probe_cost.py
	.venv/bin/python benchmarks/onnx_profiler.py
	.venv/bin/python benchmarks/gpu.py
	.venv/bin/python benchmarks/steady.py
	.venv/bin/python benchmarks/judging.py
	.venv/bin/python benchmarks/verdicts.py
	.venv/bin/python benchmarks/fleet.py

gpu: ## the claims about GPUs, on this machine, by PYTHON as it is: resumable, all in STATE; DEVICE=cpu for the logic alone, STEP=name
	PYTHONPATH="$(CURDIR)/probe:$(CURDIR)/exporter:$(CURDIR)/benchmarks" $(PYTHON) -m gpu_claims --state $(or $(STATE),gpu.json) \
		$(if $(DEVICE),--device $(DEVICE)) $(if $(STEP),--step $(STEP)) $(if $(SCALE),--scale $(SCALE)) $(ARGS)

clean: ## remove what was installed and cached here
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis

%/check/node_modules: %/check/package-lock.json
	@command -v npm >/dev/null || { echo "no npm: apt-get install nodejs npm"; exit 2; }
	npm ci --prefix $*/check --no-audit --no-fund
	@touch $@

.venv/bin/python:
	@echo "Making a virtual environment in .venv with $(PYTHON) …"
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "$(PYTHON) is not Python 3.10 to 3.13; name one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 2; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; echo "no virtual environment: install python3-venv"; exit 2; }

.venv/demo: .venv/bin/python pyproject.toml constraints.txt
	@echo "Installing InferCanary and torch into .venv; a first time takes a minute or a few …"
	@$(if $(TORCH_INDEX_URL),,echo "(On Linux that torch comes with CUDA, several GB. A small one for the CPU: see TORCH_INDEX_URL in the README.)")
	$(PIP) --editable '.[demo]'
	@touch $@

.venv/dev: .venv/bin/python pyproject.toml constraints.txt
	@echo "Installing InferCanary with everything it is developed with into .venv …"
	$(PIP) --editable '.[dev]'
	@touch $@ .venv/demo

.venv/site: .venv/dev
	$(PIP) --editable '.[dev,site]'
	@touch $@

.venv/mutation: .venv/dev
	$(PIP) --editable '.[dev,mutation]'
	@touch $@
