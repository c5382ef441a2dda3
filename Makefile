# Everything here works from a fresh clone; each target makes what it needs first.

PYTHON ?= python3
SGLANG_PYTHON ?= python3.11
BIN := .venv/bin

.PHONY: help demo lint check test faults bench format runbooks docs schema sglang-cpu routers packages clean

help:
	@echo "make demo         a relaunch on this machine: no root, no GPU, no settings"
	@echo "make lint         ruff and mypy"
	@echo "make check        lint, types and the fast tests (some five minutes)"
	@echo "make test         all tests; as root on Debian also those on real parts"
	@echo "make faults       all ways in which an order may be broken, about two hours; its table is docs/faults.md"
	@echo "make sglang-cpu   the real SGLang for those tests, on CPU (1.6 GB)"
	@echo "make routers      SGLang's routers for those tests (no GPU, no torch)"
	@echo "make bench        speed, as ratios to plain ssh, to the same steps by hand, to pyinfra and Ansible;"
	@echo "                  with the real SGLang, how long a switch is dark"
	@echo "make runbooks     docs/runbooks from playbooks/"
	@echo "make docs         docs/configuration.md from the models, docs/failures from the signatures"
	@echo "make schema       docs/schema, what --json prints, from the types of the answers"
	@echo "make format       let ruff rewrite the code"
	@echo "make clean        remove the environments and caches (not the one of sglang-cpu)"

demo: .venv/lab.stamp
	@$(BIN)/python -m orchestrator.lab.demo

lint: .venv/dev.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

check: lint
	$(BIN)/pytest -q tests/unit tests/agent -m "not slow"

test: packages .venv/dev.stamp
	$(BIN)/python -m tests.halves

faults: packages routers .venv/dev.stamp
	$(BIN)/python -m tests.faults --write $(FAULTS)
	$(BIN)/pytest -m exhaustive tests/lab/test_roll.py tests/lab/test_nodes.py tests/sglang

bench: packages .venv/dev.stamp
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python -m benchmarks.prep
	$(BIN)/python -m benchmarks.many
	$(BIN)/python -m benchmarks.dark
	$(BIN)/python -m benchmarks.measure

format: .venv/dev.stamp
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

runbooks: .venv/lab.stamp
	@mkdir -p docs/runbooks && rm -f docs/runbooks/*.md
	@for name in $(basename $(notdir $(wildcard playbooks/*.yml))); do $(BIN)/fab runbook $$name --markdown > docs/runbooks/$$name.md || exit 1; done

docs: .venv/lab.stamp
	@$(BIN)/python -m orchestrator.reference --cases tests/data/failures docs

schema: .venv/lab.stamp
	@mkdir -p docs/schema
	@$(BIN)/python -m orchestrator.cli.documents.schema > docs/schema/documents-1.json

ifdef ORCHESTRATOR_SGLANG_VENV
sglang-cpu:
	@$(ORCHESTRATOR_SGLANG_VENV)/bin/python -c 'import sglang' && echo "using $(ORCHESTRATOR_SGLANG_VENV) as it is"
else
sglang-cpu: packages
	@$(SGLANG_PYTHON) tests/sglang/recipe/install.py .cache/sglang-cpu
endif

routers: .cache/routers/sglang-router/bin/smg .cache/routers/smg/bin/smg

.cache/routers/sglang-router/bin/smg:
	@$(PYTHON) -m venv .cache/routers/sglang-router
	@.cache/routers/sglang-router/bin/pip install --quiet --disable-pip-version-check sglang-router==0.3.2

.cache/routers/smg/bin/smg:
	@$(PYTHON) -m venv .cache/routers/smg
	@.cache/routers/smg/bin/pip install --quiet --disable-pip-version-check smg==1.13.0

packages:
	@tests/rig/install_packages.sh

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "this Python can't make environments; on Debian: apt install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv .venv

.venv/lab.stamp: pyproject.toml | .venv/bin/python
	@echo "installing into .venv"
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[lab]'
	@touch $@

.venv/dev.stamp: pyproject.toml | .venv/bin/python
	@echo "installing into .venv, with what the tests need"
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ .venv/lab.stamp
