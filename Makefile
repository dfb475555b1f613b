# One entry for everything that people do here. `make run` installs what serves, `make test` and the others all the rest.

PYTHON ?= python3
UV ?= uv
VENV := .venv
BIN := $(VENV)/bin

# Some images set it. Without bytecode each process compiles all that it imports: a second of each start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install lock run test test-all test-waiting test-computing wheel wheel-aarch64 clients check native sanitize format bench seeds platforms compose-secrets

RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.installed
PIP := $(BIN)/pip --quiet --disable-pip-version-check
LOCKED := --no-deps --require-hashes
NATIVE := kernels/cpu/native/src
SOURCES := $(wildcard kernels/cpu/native/src/* kernels/cpu/native/src/*/*)

install: $(STAMP)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# What serving on a CPU takes, and no more. Only what a lock names is installed, with its hashes; nothing is resolved. uv
# takes a fifth of pip's processor time, but knows no index or certificate of pip's configuration: where it fails, pip does it.
PACKAGES := $(LOCKED) -r requirements.lock -r requirements-build.lock
UV_INSTALL := $(BIN)/uv --quiet --no-cache pip install --python $(BIN)/python
$(VENV)/.packages: requirements.lock requirements-build.lock requirements-uv.lock | $(BIN)/python
	$(PIP) install --no-compile $(LOCKED) -r requirements-uv.lock && $(UV_INSTALL) $(PACKAGES) || \
		$(PIP) install --no-compile $(PACKAGES)
	touch $@

# The native library is compiled while the packages arrive; setup.py takes it as it is.
$(VENV)/.native: setup.py $(SOURCES) | $(BIN)/python
	if command -v $(CXX) >/dev/null; then $(MAKE) --no-print-directory -s native; fi
	touch $@

$(RUNTIME): pyproject.toml setup.py $(VENV)/.packages $(VENV)/.native
	PYTHONWARNINGS=ignore $(PIP) install --no-deps --no-build-isolation --config-settings editable_mode=compat -e .
	touch $@

# What makes wheels.
$(VENV)/.wheel: requirements-wheel.lock | $(BIN)/python
	$(PIP) install $(LOCKED) -r requirements-wheel.lock
	touch $@

# All else, for tests and checks. torch comes by its name: which build is right depends on the device, and each has hashes
# of its own. What every build needs is in the lock, so it brings itself and, built for CUDA, CUDA's libraries.
$(STAMP): $(RUNTIME) requirements-dev.lock
	$(UV_INSTALL) $(LOCKED) -r requirements-dev.lock || $(PIP) install --no-compile $(LOCKED) -r requirements-dev.lock
	$(PIP) install --no-compile torch==2.13.0
	touch $@

# The locks from pyproject.toml, after a change there; versions that still fit stay. `make lock LOCK_FLAGS=--upgrade`: none.
# For serving: all extras but those that bring torch. For an image with a GPU: those, too. For tests: everything.
LOCK = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--no-emit-index-url --no-emit-package torch $(LOCK_FLAGS)
SERVING := $(foreach extra,embedded clickhouse kafka postgres redis bench grpc,--extra $(extra))
lock:
	$(LOCK) pyproject.toml $(SERVING) -o requirements.lock
	$(LOCK) pyproject.toml -c requirements.lock --extra all --extra dev -o requirements-dev.lock
	$(LOCK) pyproject.toml -c requirements-dev.lock --extra all -o requirements-gpu.lock
	echo setuptools | $(LOCK) - -c requirements-dev.lock -o requirements-build.lock
	echo uv | $(LOCK) - -o requirements-uv.lock
	printf 'setuptools\nauditwheel\npatchelf\n' | $(LOCK) - -c requirements-dev.lock -o requirements-wheel.lock

# Its first start fetches a model, 93 MB.
run:
	$(MAKE) --no-print-directory -j2 $(RUNTIME)
	$(BIN)/turnpike serve --demo

# A file at a time for each worker.
PYTEST := $(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# What needs nothing but the installation, in minutes.
test: install
	$(PYTEST) -m unit

# All tiers but those that run by their name alone, with the servers and programs that are installed, in two runs side by
# side: tests that compute take what those leave of the processor that wait for servers, browsers and processes.
# `.venv/bin/pytest -m TIER` runs one tier.
test-all: install
	$(MAKE) --no-print-directory -j2 --output-sync test-waiting test-computing

test-waiting:
	$(PYTEST) -m "not (kernels or models or matrix or soak)"

test-computing:
	nice -n 10 $(PYTEST) -m "kernels or models"

# A wheel in dist/ that any Linux with a C library as new as this machine's can install, native library and all.
WHEEL := $(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir
REPAIR := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist
wheel: $(VENV)/.wheel
	$(WHEEL) build/wheel .
	$(REPAIR) build/wheel/turnpike-*.whl

# The same for Arm servers, cross-compiled (Debian: g++-aarch64-linux-gnu), with the portable kernels. Where there is an
# emulator (qemu-user), their products are computed in it and compared.
CXX_AARCH64 ?= aarch64-linux-gnu-g++
ROOT_AARCH64 ?= /usr/aarch64-linux-gnu
QEMU_AARCH64 ?= $(shell command -v qemu-aarch64 || command -v qemu-aarch64-static)
ARM := build/wheel-aarch64
wheel-aarch64: $(VENV)/.wheel
	rm -rf $(ARM)
	_PYTHON_HOST_PLATFORM=linux-aarch64 CC="$(CXX_AARCH64)" CXX="$(CXX_AARCH64)" LDSHARED="$(CXX_AARCH64) -shared" \
		LDCXXSHARED="$(CXX_AARCH64) -shared" $(WHEEL) $(ARM) .
	$(REPAIR) $(ARM)/turnpike-*.whl
ifneq ($(QEMU_AARCH64),)
	$(BIN)/python -m zipfile -e $(ARM)/turnpike-*.whl $(ARM)/unpacked
	$(CXX_AARCH64) -std=c++17 -O1 -I$(NATIVE) -o $(ARM)/smoke tests/kernels/cpu/smoke.cpp -ldl
	$(QEMU_AARCH64) -L $(ROOT_AARCH64) $(ARM)/smoke $(CURDIR)/$(ARM)/unpacked/kernels/cpu/native/_kernels.abi3.so
endif

# Environments of the clients that tests/e2e/clients tries, and of the newest uvicorn; without them those tests skip.
clients: install
	$(BIN)/python -m tests.e2e.clients

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.words

# Further seeds of the simulation of the whole program: `make test-all` has the first 60 and those that failed once.
SEEDS ?= 940
seeds: install
	$(BIN)/python -m tests.whole --from 60 --seeds $(SEEDS)

# Whether the locked dependencies have wheels for Linux and macOS on Arm, and for newer Pythons. Asks the package index.
platforms: install
	$(BIN)/python -m tests.deploy.platforms

# The native library alone, into the tree; only what has changed. `make -C kernels/cpu/native/src help` says more.
native:
	$(MAKE) --no-print-directory -C kernels/cpu/native/src

# The native kernels' tests on a library with AddressSanitizer and UndefinedBehaviorSanitizer in it, and loops of the team
# of threads under ThreadSanitizer. Leaks are not looked for: Python's own would drown those of kernels that allocate nothing.
SANITIZED := -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
RUNTIMES := libasan.so libubsan.so libstdc++.so.6
ASAN := detect_leaks=0:alloc_dealloc_mismatch=0

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
