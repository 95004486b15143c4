# Everything a fresh machine needs is behind these targets. Each sets up .venv first, once: `demo` what it takes to
# serve, the others all, PyTorch included.
# A new target: one line `name: $(READY) ## what it does`, and its recipe.

VENV := .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable
DEMO_READY := $(VENV)/demo-ready
READY := $(VENV)/ready
BENCH_READY := $(VENV)/bench-ready
ARGS ?=
# Files of tests go to two workers as these get free: whoever shares a cluster stays together. `-n 0` takes one process.
WORKERS := -n 2 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow sanitize grafana-tools check format wheel bench bench-sweep bench-versions clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with all that the other targets need (python 3.10 or newer)

demo: $(DEMO_READY) ## a broker and two stages answer a prompt, then stop (ARGS="..." for `stagewire demo`)
	@$(BIN)/stagewire demo $(ARGS)

test: $(READY) ## the test suite (ARGS="-k name" to pick tests, "-n 0" for one process)
	$(BIN)/python -m pytest -m "not slow" $(WORKERS) $(ARGS)

test-slow: $(READY) ## the tests that take longer
	$(BIN)/python -m pytest -m slow $(ARGS)

sanitize: $(READY) ## the native kernels' tests with the sanitizers for memory and undefined behaviour (needs g++)
	@.ci/sanitize $(BIN)/python $(ARGS)

grafana-tools: ## what a test checks the dashboards' types with (needs npm)
	@mkdir -p build/grafana
	@cp tests/data/grafana/package.json build/grafana/
	npm install --prefix build/grafana --no-audit --no-fund --no-package-lock

check: $(READY) ## lint, format and types, changing nothing
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

format: $(READY) ## format, and fix what lint can fix
	$(BIN)/python -m ruff check --fix --exit-zero .
	$(BIN)/python -m ruff format .

wheel: $(DEMO_READY) ## dist/*.whl with all kernels, for other Linux machines, which need no compiler then (needs g++)
	@$(INSTALL) '.[wheel]' --quiet
	rm -rf dist/*.whl build/wheel build/lib.* build/bdist.*
	STAGEWIRE_KERNELS=all $(BIN)/python -m pip wheel --disable-pip-version-check --no-deps --wheel-dir build/wheel .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m auditwheel repair --wheel-dir dist build/wheel/*.whl

bench: $(BENCH_READY) ## Stagewire and llama.cpp side by side (ARGS="--quick", "--json", "--only decode_8", "--help")
	@$(BIN)/python -m bench $(ARGS)

bench-sweep: $(READY) ## time per token over 1 to 4 stages and simulated delays (ARGS="--quick", "--help")
	@$(BIN)/python -m bench.sweep $(ARGS)

bench-versions: $(READY) ## this version and another checkout in turns (ARGS="--before ../other-checkout", "--help")
	@$(BIN)/python -m bench.versions $(ARGS)

clean: ## remove .venv and all caches
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# `demo-ready` holds the folder it was made in: a tree that was moved or copied sets up again, since the editable
# install names absolute paths. It is also older than pyproject.toml when a package or a dependency was added.
ifneq ($(shell cat $(DEMO_READY) 2>/dev/null),$(CURDIR))
.PHONY: $(DEMO_READY)
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

$(DEMO_READY): pyproject.toml constraints.txt setup.py $(wildcard stage/native/src/*)
	@$(FIND_PYTHON); \
	if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	    echo "Making $(VENV) with $$("$$python" --version)"; \
	    "$$python" -m venv --clear $(VENV); \
	fi
	@echo 'Installing stagewire and what it needs to serve: 35 MB to download;'
	@echo 'its native kernels are compiled once ("Building editable for stagewire"): half a minute on two cores'
	@$(INSTALL) '.[text,native,cli]'
	@if ! $(BIN)/python -c $(HAS_KERNELS); then \
	    echo 'No native kernel was built: that takes a C++ compiler, as in the package g++.'; \
	    echo 'PyTorch computes instead: up to 3 GB to download, some minutes'; \
	    $(INSTALL) '.[text,stage,cli]'; \
	fi
	@printf '%s' '$(CURDIR)' >$@

HAS_KERNELS := 'import sys; from stagewire.stage.native.kernel import runnable_variants; sys.exit(not runnable_variants())'

$(READY): $(DEMO_READY)
	@echo 'Installing PyTorch and the tools of the tests: up to 3 GB to download, some minutes'
	@$(INSTALL) '.[text,stage,cli,dev]'
	@touch $@

# llama.cpp is compiled for this machine, with its RPC servers and without its image models. A wheel that was built
# for another machine, or with other options, will not do, so neither wheels nor pip's cache are taken.
# The compiler flags are for processors with AMX: gcc before version 14 takes `_tile_loadconfig` to read 8 bytes of
# the 64, drops the stores into the rest as dead, and the first product crashes.
LLAMA_OPTIONS := -DGGML_NATIVE=ON -DGGML_RPC=ON -DLLAVA_BUILD=OFF
LLAMA_CXXFLAGS := $(shell grep -qsw amx_int8 /proc/cpuinfo && echo -fno-tree-dse -fno-dse)

$(BENCH_READY): $(READY)
	@echo 'Compiling llama.cpp for this machine; about ten minutes, once'
	@CMAKE_ARGS='$(LLAMA_OPTIONS)' CXXFLAGS='$(LLAMA_CXXFLAGS)' $(BIN)/python -m pip install --editable '.[bench]' \
	    --constraint constraints.txt --no-binary llama-cpp-python --no-cache-dir
	@touch $@
