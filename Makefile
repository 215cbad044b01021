# Two commands do everything: `make demo` and `make test`. Both make .venv first and say what they lack.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The test workers share two cores with the sshd's and agents they start.
PYTEST_WORKERS ?= 4

.PHONY: demo test lint venv system clean bench help

help:
	@echo "make demo    the main job, on this machine through a real SSH connection (about a minute)"
	@echo "make test    everything CI runs: style, types, every test"
	@echo "make lint    style and types only"
	@echo "make bench   the benchmarks in benchmarks/ (ratios measured side by side)"

venv: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "farbench needs Python 3.11 or newer; name one with make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.ready-dev: $(VENV)/.ready requirements-test.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' -r requirements-test.txt
	touch $@

demo: $(VENV)/.ready
	$(BIN)/farbench run examples/demo.yaml --host local

system:
	@sh tests/support/system.sh

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: $(VENV)/.ready-dev system lint
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal

bench: $(VENV)/.ready-dev system
	$(BIN)/python benchmarks/many_cases.py
	$(BIN)/python benchmarks/round_trips.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
