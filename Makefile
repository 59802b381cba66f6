# Every target installs what it needs. `make` without a target lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.ready
RUN := $(VENV)/bin/python -m
DOCS := .venv-docs

# Tests start thousands of short processes, which need byte-code.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup test-packages image release test proof nightly mutants gpu-mutants check format golden bench docs docs-serve clean
help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP)  ## create .venv with all dependencies, install missing system packages

# pip, not uv: it uses the index, CA and proxy that the user configured.
$(STAMP): pyproject.toml tools/system-packages
	tools/system-packages
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

test-packages: $(STAMP)
	@tools/system-packages tests

image: $(STAMP)  ## build torch 2.7.1 for CUDA 12.1 into dist/
	@$(VENV)/bin/python build.py --torch 2.7 --cuda 12.1

release: $(STAMP)  ## build, test, publish, verify: TO=REGISTRY/REPOSITORY KEY=KEY.pem [SINCE=GIT_REF REPORTS=FOLDER TRUST=PUB.pem TIER=2]
	$(VENV)/bin/python tools/release.py --to "$(TO)" --key "$(KEY)" $(if $(SINCE),--since "$(SINCE)") \
	  $(if $(REPORTS),--reports "$(REPORTS)") $(if $(TRUST),--trust "$(TRUST)") $(if $(TIER),--tier "$(TIER)")

test: test-packages  ## all tests that need no container engine and no package index (some minutes)
	$(RUN) pytest -m "not proof" --ignore=tests/proof -n auto --no-loadscope-reorder

# A failure of runc, not of the image: once in thousands of starts on a busy machine.
RERUN = --reruns 2 --only-rerun "read init-p: connection reset by peer"
proof: test-packages  ## the other tests: container engines, the real image of 2.7.1 against pip, smoke checks where they must fail (about 25 minutes)
	$(RUN) pytest -m "proof or hypothesis" --hypothesis-profile=long -n auto --ignore=tests/proof $(RERUN)
	$(RUN) pytest -m proof -v -n auto --no-loadscope-reorder tests/proof $(RERUN)

nightly: export NIGHTLY = yes
nightly: proof  ## make proof, and what repeats a claim at a higher cost: more engines, instants, examples (hours, 45 GB)

mutants: $(STAMP)  ## each smoke check where it must fail, without GPUs; records for .ci/run that all passed
	TORCHKILN_MUTANTS=record $(RUN) pytest -m proof -n auto tests/smoke_mutants

# Without .venv: a machine with GPUs has torch and pytest in another Python. BESIDE="-n 8" if it has xdist.
GPU_MUTANTS = PYTHONPATH=. $(PYTHON) -m pytest --confcutdir=tests/smoke_mutants -p no:cacheprovider -p no:benchmark -rs tests/smoke_mutants
gpu-mutants:  ## each smoke check where it must fail, on this machine's GPUs; needs a python3 with torch and pytest
	$(GPU_MUTANTS) -m "not alone" --junitxml=dist/gpu-mutants.xml $(BESIDE)
	$(GPU_MUTANTS) -m alone --junitxml=dist/gpu-mutants-alone.xml

check: $(STAMP)  ## lint, types, stale generated files
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(VENV)/bin/python build.py lock --check --all
	$(VENV)/bin/python build.py render --all --check
	$(VENV)/bin/python tools/readme.py --check
	$(VENV)/bin/python tools/gpu_pages.py --check
	$(VENV)/bin/python tools/recipes_page.py --check

golden: $(STAMP)  ## write golden files and generated pages
	$(VENV)/bin/python build.py render --all
	$(RUN) tests.golden.write
	$(RUN) tools.schemas
	$(VENV)/bin/python tools/readme.py
	$(VENV)/bin/python tools/gpu_pages.py
	$(VENV)/bin/python tools/recipes_page.py
	$(RUN) bench.thin_sizes --page

bench: test-packages  ## measure speed, size and memory against alternatives, into docs/ (30 minutes, an idle machine)
	$(RUN) bench

# An environment of its own: `make setup` stays small. MkDocs fails for a broken link.
$(DOCS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet --disable-pip-version-check -e '.[docs]'
	touch $@

docs: $(DOCS)/.ready  ## build the documentation and the catalogue of images as a site, into dist/site
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build
	$(DOCS)/bin/torchkiln ls --site dist/site/catalogue

docs-serve: $(DOCS)/.ready  ## serve the documentation on 127.0.0.1:8000, rebuilt after each change
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs serve --watch README.md --watch CONTRIBUTING.md --watch SECURITY.md

clean:  ## delete files of builds and tests (the cache stays)
	rm -rf dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
