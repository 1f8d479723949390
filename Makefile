# make demo, make test: each does its own set-up on a fresh machine with Python 3.11+, g++ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
SOURCES := CMakeLists.txt $(shell find csrc -type f)
SETUP := $(VENV)/.dependencies $(VENV)/.installed

.PHONY: setup demo test lint format bench gpu-check gpu-sanitize clean

setup: $(SETUP)

demo: $(SETUP)
	$(BIN)/dpiframe demo --output demo_out

test: $(SETUP)
	$(BIN)/python -m pytest

lint: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(find csrc -type f)
	$(BIN)/python -m pytest tests/test_house_style.py

format: $(SETUP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(find csrc -type f)

bench: $(SETUP)
	$(BIN)/dpiframe bench engine

# ONLY=lookup,stream measures these parts alone anew.
gpu-check: $(SETUP)
	$(BIN)/python -m pytest tests/gpu
	$(BIN)/dpiframe bench gpu --output docs/gpu $(if $(ONLY),--only $(ONLY))

# compute-sanitizer comes with the CUDA toolkit. Racecheck cannot follow the barriers of the fused
# kernels' normal form, so it runs on a build of its own; -S, since the editable install would hide it.
RACECHECK := build/racecheck
SITE = $(shell $(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")
gpu-sanitize: $(SETUP)
	for tool in memcheck synccheck; do \
	  for cases in "" persistent fp16x3; do \
	    compute-sanitizer --tool $$tool --error-exitcode 9 \
	      $(BIN)/python tests/gpu/sanitize.py $$cases || exit 1; \
	  done; \
	done
	$(PIP) install --no-build-isolation --no-deps --upgrade --target $(RACECHECK) \
	  -C cmake.define.DPIFRAME_CUDA=ON -C cmake.define.DPIFRAME_RACECHECK=ON .
	for cases in "" persistent fp16x3; do \
	  PYTHONPATH=$(RACECHECK):$(SITE) compute-sanitizer --tool racecheck --error-exitcode 9 \
	    $(BIN)/python -S tests/gpu/sanitize.py $$cases || exit 1; \
	done

clean:
	rm -rf build $(VENV) demo_out

$(VENV)/.dependencies: requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -r requirements.txt
	touch $@

# The compiled part alone is built anew when a C++ or CUDA file changed.
$(VENV)/.installed: $(VENV)/.dependencies $(SOURCES)
	$(PIP) install --no-build-isolation --no-deps -e .
	touch $@
