# One entry for everything that people do here. `make run` and `make test` install first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install run test clients check native sanitize format bench compose-secrets

install: $(STAMP)

# torch first and pinned: another package's range must not choose the build.
$(STAMP): pyproject.toml setup.py $(wildcard kernels/cpu/native/src/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat -e '.[dev]'
	touch $(STAMP)

run: install
	$(BIN)/turnpike serve --demo

test: install
	$(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile

# Environments of the clients that tests/e2e/clients tries; without them those tests skip.
clients: install
	$(BIN)/python -m tests.e2e.clients

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

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
		tests/kernels/cpu/team_loops.cpp $(NATIVE)/team.cpp
	build/team_loops

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install
	$(BIN)/python -m benchmarks

# Passwords for docker-compose.yml, made once for this installation.
compose-secrets:
	sh deploy/compose/secrets.sh .env
