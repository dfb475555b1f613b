# One entry for everything that people do here. `make run` and `make test` install first.

PYTHON ?= python3
UV ?= uv
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install lock run test test-all clients check native sanitize format bench compose-secrets

install: $(STAMP)

# What a lock names is installed with its hashes, and nothing beyond it is resolved. torch comes by its name: which build is
# right depends on the device, and each has hashes of its own. What every build needs is in the lock, so it brings itself
# and, built for CUDA, CUDA's libraries.
$(STAMP): pyproject.toml setup.py requirements-dev.lock $(wildcard kernels/cpu/native/src/* kernels/cpu/native/src/*/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
		--config-settings editable_mode=compat -e .
	touch $(STAMP)

# The locks from pyproject.toml, after a change there; versions that still fit stay. `make lock LOCK_FLAGS=--upgrade`: none.
LOCK = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--no-emit-index-url --no-emit-package torch $(LOCK_FLAGS)
lock:
	$(LOCK) pyproject.toml -o requirements.lock
	$(LOCK) pyproject.toml -c requirements.lock --extra dev -o requirements-dev.lock
	echo setuptools | $(LOCK) - -c requirements.lock -o requirements-build.lock

run: install
	$(BIN)/turnpike serve --demo

# A file at a time for each worker.
PYTEST := $(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# What needs nothing but the installation, in minutes.
test: install
	$(PYTEST) -m unit

# All tiers, with the servers and programs that are installed. `.venv/bin/pytest -m TIER` runs one of them.
test-all: install
	$(PYTEST)

# Environments of the clients that tests/e2e/clients tries, and of the newest uvicorn; without them those tests skip.
clients: install
	$(BIN)/python -m tests.e2e.clients

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.words

# The native library alone, into the tree; only what has changed. `make -C kernels/cpu/native/src help` says more.
native:
	$(MAKE) --no-print-directory -C kernels/cpu/native/src PYTHON=$(CURDIR)/$(BIN)/python

# The native kernels' tests on a library with AddressSanitizer and UndefinedBehaviorSanitizer in it, and loops of the team
# of threads under ThreadSanitizer. Leaks are not looked for: Python's own would drown those of kernels that allocate nothing.
SANITIZED := -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
RUNTIMES := libasan.so libubsan.so libstdc++.so.6
ASAN := detect_leaks=0:alloc_dealloc_mismatch=0
NATIVE := kernels/cpu/native/src

sanitize: install
	$(MAKE) --no-print-directory -j2 -C $(NATIVE) FLAVOUR=-sanitized SUFFIX=.sanitized.so EXTRA='$(SANITIZED)'
	LD_PRELOAD="$(foreach name,$(RUNTIMES),$(shell $(CXX) -print-file-name=$(name)))" ASAN_OPTIONS=$(ASAN) \
		$(BIN)/pytest -x -n 2 -p tests.kernels.cpu.sanitized tests/kernels/cpu
	mkdir -p build
	$(CXX) -std=c++17 -O1 -g -Wall -Wextra -fsanitize=thread -pthread -I$(NATIVE) -o build/team_loops \
		tests/kernels/cpu/team_loops.cpp $(NATIVE)/threads/team.cpp
	build/team_loops

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install
	$(BIN)/python -m benchmarks

# Passwords for docker-compose.yml, made once for this installation.
compose-secrets:
	sh deploy/compose/secrets.sh .env
