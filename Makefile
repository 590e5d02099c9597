# Everything runs in .venv, made on first use from requirements.lock.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help install demo test check bench study lock clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(VENV)/.installed  ## make .venv from the lock

$(VENV)/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "RecurTrace needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --requirement requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

demo: install  ## the embedded model at several depths, then the whole story on it: train, halt, evaluate, report
	$(BIN)/recurtrace demo
	$(BIN)/recurtrace run recipes/demo.yaml

test: install  ## the tests
	$(BIN)/python -m pytest --numprocesses 2

check: install  ## lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test

bench: install  ## time and memory against the base model and against its FLOPs (15 minutes); updates the README
	$(BIN)/python -m benchmarks.depth_cost --readme README.md
	$(BIN)/python -m benchmarks.training_step --readme README.md

study: install  ## train and compare on the embedded base, three seeds (hours on two cores)
	$(BIN)/python -m studies.tiny
	$(BIN)/python -m studies.halting

lock: install  ## write requirements.lock from what is installed
	(echo '# The exact versions that `make` installs. Written by `make lock`.'; \
	 $(BIN)/pip freeze --all --exclude-editable | grep -v '^pip==' | sed 's/+cpu//') > requirements.lock

clean:  ## remove .venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
