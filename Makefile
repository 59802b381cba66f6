# Every target installs what it needs. `make` without a target lists the targets.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.ready
RUN := $(VENV)/bin/python -m
DOCS := .venv-docs

# Tests start thousands of short Python processes, which are slow without cached .pyc files.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup test-packages image release test proof nightly mutants gpu-mutants check golden bench docs docs-serve clean
help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP)  ## create .venv with all dependencies, install missing system packages

# pip, not uv: pip uses the index, CA and proxy that the user configured for it.
$(STAMP): pyproject.toml tools/system-packages
	tools/system-packages
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

test-packages: $(STAMP)
	@tools/system-packages tests

image: $(STAMP)  ## build torch 2.7.1 for CUDA 12.1 into dist/, and test the image
	@$(VENV)/bin/python build.py --torch 2.7 --cuda 12.1

release: $(STAMP)  ## build, test, publish, verify: TO=REGISTRY/REPOSITORY KEY=KEY.pem [SINCE=GIT_REF REPORTS=FOLDER TRUST=PUB.pem TIER=2]
	$(VENV)/bin/python tools/release.py --to "$(TO)" --key "$(KEY)" $(if $(SINCE),--since "$(SINCE)") \
	  $(if $(REPORTS),--reports "$(REPORTS)") $(if $(TRUST),--trust "$(TRUST)") $(if $(TIER),--tier "$(TIER)")

test: test-packages  ## run all tests that need no container engine and no package index (some minutes)
	$(RUN) pytest -m "not proof" --ignore=tests/proof -n auto --no-loadscope-reorder

# Rerun after this failure of runc, which is not the image's: it occurs once in thousands of starts on a busy machine.
RERUN = --reruns 2 --only-rerun "read init-p: connection reset by peer"
proof: test-packages  ## run the other tests: container engines, the real image of 2.7.1 compared with pip, smoke checks where they must fail (about 25 minutes)
	$(RUN) pytest -m "proof or hypothesis" --hypothesis-profile=long -n auto --ignore=tests/proof $(RERUN)
	$(RUN) pytest -m proof -v -n auto --no-loadscope-reorder tests/proof $(RERUN)

nightly: export NIGHTLY = yes
nightly: proof  ## run make proof, and longer tests of the same claims: more engines, interruptions, examples (hours, 45 GB)

mutants: $(STAMP)  ## run each smoke check in environments in which it must fail, without GPUs; record for .ci/run that all passed
	TORCHKILN_MUTANTS=record $(RUN) pytest -m proof -n auto tests/smoke_mutants

# Not in .venv: a machine with GPUs usually has torch and pytest in another Python. BESIDE="-n 8" if that has pytest-xdist.
GPU_MUTANTS = PYTHONPATH=. $(PYTHON) -m pytest --confcutdir=tests/smoke_mutants -p no:cacheprovider -p no:benchmark -rs tests/smoke_mutants
gpu-mutants:  ## run each smoke check in environments in which it must fail, on this machine's GPUs; python3 must have torch and pytest
	$(GPU_MUTANTS) -m "not alone" --junitxml=dist/gpu-mutants.xml $(BESIDE)
	$(GPU_MUTANTS) -m alone --junitxml=dist/gpu-mutants-alone.xml

check: $(STAMP)  ## check lint, types and stale generated files
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
	$(RUN) tools.earlier_locks
	$(RUN) tests.golden.write
	$(RUN) tools.schemas
	$(VENV)/bin/python tools/readme.py
	$(VENV)/bin/python tools/gpu_pages.py
	$(VENV)/bin/python tools/recipes_page.py
	$(RUN) bench.thin_sizes --page

bench: test-packages  ## measure speed, size and memory against alternatives, into docs/ (30 minutes, an idle machine)
	$(RUN) bench

# A separate environment, so that `make setup` stays small. MkDocs fails if a link is broken.
$(DOCS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet --disable-pip-version-check -e '.[docs]'
	touch $@

docs: $(DOCS)/.ready  ## build the documentation and the catalogue of images as a site, into dist/site
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build
	$(DOCS)/bin/torchkiln ls --site dist/site/catalogue

docs-serve: $(DOCS)/.ready  ## serve the documentation on 127.0.0.1:8000, rebuilt after each change
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs serve --watch README.md --watch CONTRIBUTING.md --watch SECURITY.md

clean:  ## delete the output of builds and tests, not the cache
	rm -rf dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
