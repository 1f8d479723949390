# make demo, make test: each does its own set-up on a fresh machine with Python 3.11+, g++ and make.
#
# The CUDA part is built where nvcc and a GPU are found. `make CUDA=1 TARGET` builds it on any
# machine with nvcc, CUDA=0 nowhere; CUDA_ARCHS="80 90" says for which GPUs. The answer is kept.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
INSTALL := install --no-build-isolation --no-deps
NATIVE := $(shell find csrc -type f)
SOURCES := CMakeLists.txt pyproject.toml $(NATIVE)
SETUP := $(VENV)/.dependencies $(VENV)/.installed

.PHONY: setup demo test lint format hooks bench faults fuzz gpu-check gpu-sanitize sanitize clean FORCE

setup: $(SETUP)

demo: $(SETUP)
	$(BIN)/dpiframe demo --output demo_out

test: $(SETUP)
	$(BIN)/python -m pytest

lint: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(NATIVE)
	$(BIN)/python -m pytest tests/test_house_style.py

format: $(SETUP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE)

# The same checks of what is committed, before each commit.
hooks: $(SETUP)
	$(BIN)/pre-commit install

# Crashes, failures and power losses at every file-system call of publishing, for so long.
SEED ?= 7
SECONDS ?= 1800
faults: $(SETUP)
	$(BIN)/python tests/faults/publishing_faults.py --seed $(SEED) --seconds $(SECONDS)

bench: $(SETUP)
	$(BIN)/dpiframe bench engine

# ONLY=lookup,stream measures these parts alone anew.
gpu-check: $(SETUP)
	$(BIN)/python -m pytest tests/gpu
	$(BIN)/dpiframe bench gpu --output docs/gpu $(if $(ONLY),--only $(ONLY))

# compute-sanitizer comes with the CUDA toolkit. racecheck follows the fp16x3 kernel only in a form
# of its own, which no other build has.
gpu-sanitize: $(SETUP) build/racecheck/.installed
	for tool in memcheck synccheck racecheck; do \
	  for cases in "" persistent fp16x3; do \
	    [ $$tool-$$cases = racecheck-fp16x3 ] && bin=build/racecheck/venv/bin || bin=$(BIN); \
	    compute-sanitizer --tool $$tool --error-exitcode 9 \
	      $$bin/python tests/gpu/sanitize.py $$cases || exit 1; \
	  done; \
	done

SANITIZED := LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 build/sanitize/venv/bin/python

# Damaged files of every kind, under the sanitizers, for so long; what fails stays in build/fuzz.
fuzz: build/sanitize/.installed
	$(SANITIZED) tests/helpers/run_fuzz.py --seed $(SEED) --seconds $(SECONDS) --folder build/fuzz

# The tests of the compiled part on the CPU, under the address and undefined-behaviour sanitizers.
sanitize: build/sanitize/.installed
	$(SANITIZED) -m pytest --capture=sys -m "native and not slow"

clean:
	rm -rf build $(VENV) demo_out

$(VENV)/.dependencies: requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -r requirements.txt
	touch $@

# How the compiled part is built; changes only when CUDA= or CUDA_ARCHS= asks for something else.
$(VENV)/.options: $(VENV)/.dependencies $(if $(CUDA)$(CUDA_ARCHS),FORCE)
	@echo 'export DPIFRAME_CUDA=$(if $(CUDA),$(if $(filter 0,$(CUDA)),OFF,ON),AUTO)' \
	  'DPIFRAME_CUDA_ARCHS="$(CUDA_ARCHS)"' > $@.new
	@cmp -s $@.new $@ || cp $@.new $@

# The compiled part alone is built anew when a C++ or CUDA file changed.
$(VENV)/.installed: $(VENV)/.options $(SOURCES)
	. ./$(VENV)/.options && $(PIP) --log $(VENV)/install.log $(INSTALL) -e .
	@grep -o 'CUDA part: .*' $(VENV)/install.log | tail -n 1
	touch $@

# Other forms of the compiled part, each with a venv that finds the dependencies in the first.
build/sanitize/.installed: export DPIFRAME_CUDA = OFF
build/sanitize/.installed: export DPIFRAME_SANITIZE = ON
build/racecheck/.installed: export DPIFRAME_RACECHECK = ON
build/%/.installed: $(VENV)/.dependencies $(SOURCES)
	$(BIN)/python -m venv --without-pip build/$*/venv
	site=lib/python*/site-packages; \
	  realpath $(VENV)/$$site > $$(echo build/$*/venv/$$site)/dependencies.pth
	PATH=$(abspath $(BIN)):$$PATH $(PIP) --python build/$*/venv/bin/python $(INSTALL) \
	  -C build-dir=build/$*/cmake -C install.strip=false -e .
	touch $@
