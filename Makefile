# Everything a fresh machine needs is behind these targets. Each sets up .venv first, once.
# A new target: one line `name: $(READY) ## what it does`, and its recipe.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
EXTRAS := text,stage,cli,dev
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow sanitize check format clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with all that the other targets need (python 3.10 or newer)

demo: $(READY) ## a broker and two stages answer a prompt, then stop (ARGS="..." for `stagewire demo`)
	@$(BIN)/stagewire demo $(ARGS)

test: $(READY) ## the test suite (ARGS="-k name" to pick tests)
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

test-slow: $(READY) ## the tests that take longer
	$(BIN)/python -m pytest -m slow $(ARGS)

sanitize: $(READY) ## the native kernels' tests with the sanitizers for memory and undefined behaviour (needs g++)
	@.ci/sanitize $(BIN)/python $(ARGS)

check: $(READY) ## lint, format and types, changing nothing
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

format: $(READY) ## format, and fix what lint can fix
	$(BIN)/python -m ruff check --fix --exit-zero .
	$(BIN)/python -m ruff format .

clean: ## remove .venv and all caches
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# `ready` holds the folder it was made in: a tree that was moved or copied sets up again, since the editable
# install names absolute paths. It is also older than pyproject.toml when a package or a dependency was added.
ifneq ($(shell cat $(READY) 2>/dev/null),$(CURDIR))
.PHONY: $(READY)
endif

# The first Python that is new enough and can make virtual environments; PYTHON=... goes before all others.
define FIND_PYTHON
for python in $(PYTHON) python3 python3.13 python3.12 python3.11 python3.10; do \
    "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && break; \
    python=; \
done; \
if [ -z "$$python" ]; then \
    echo 'No python3 of version 3.10 or newer with the venv module was found.' >&2; \
    echo 'Install one (on Debian and Ubuntu also its python3-venv package), or name it: make setup PYTHON=...' >&2; \
    exit 1; \
fi
endef

$(READY): pyproject.toml constraints.txt
	@$(FIND_PYTHON); \
	if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	    echo "Making $(VENV) with $$("$$python" --version)"; \
	    "$$python" -m venv --clear $(VENV); \
	fi
	@echo 'Installing stagewire and what it needs; PyTorch is the large one, a few minutes the first time'
	@$(BIN)/python -m pip install --editable '.[$(EXTRAS)]' --constraint constraints.txt
	@printf '%s' '$(CURDIR)' >$@
