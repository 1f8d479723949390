# make demo, make test: each does its own set-up on a fresh machine with Python 3.11+, g++ and make.
#
# The CUDA part is built where nvcc and a GPU are found. `make CUDA=1 TARGET` builds it on any
# machine with nvcc, CUDA=0 nowhere; CUDA_ARCHS="80 90" says for which GPUs. The answer is kept.
#
# `make SETUP= BIN=/usr/bin TARGET` sets nothing up, but uses the python and dpiframe of that folder.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
INSTALL := install --no-build-isolation --no-deps
NATIVE := $(shell find csrc -type f)
SOURCES := CMakeLists.txt pyproject.toml $(NATIVE)
FORMATTED := $(filter-out %.cmake,$(NATIVE)) $(wildcard tests/fuzz/*.cpp tests/fuzz/*.h)
SETUP := $(VENV)/.dependencies $(VENV)/.installed
BUILDER := cmake ninja pybind11 scikit-build-core

.PHONY: setup demo pictures test lint format hooks faults soak-stores backfills check-airflow check-clusters bench fuzz fuzz-guided fuzzers gpu-check gpu-jobs gpu-sweep gpu-sanitize sanitize clean FORCE

setup: $(SETUP)

demo: $(SETUP)
	$(BIN)/dpiframe demo --output demo_out

# docs/pictures: the report and MLflow's pages, by headless Chromium.
pictures: $(SETUP)
	$(BIN)/python tests/helpers/make_pictures.py

# JOBS processes take the files of tests, the slow ones first; pytest alone runs them in one.
JOBS ?= 2
PARALLEL := -n $(JOBS) --dist loadfile --no-loadscope-reorder

test: $(SETUP)
	$(BIN)/python -m pytest $(PARALLEL)

lint: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(FORMATTED)
	$(BIN)/python -m pytest tests/test_house_style.py

format: $(SETUP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(FORMATTED)

# The same checks of what is committed, before each commit.
hooks: $(SETUP)
	$(BIN)/pre-commit install

# Crashes, failures and power losses at every file-system call of publishing, and crashes, lost
# answers and zombies at every request to an object store, each for so long.
SEED ?= 7
SECONDS ?= 1800
faults: $(SETUP)
	$(BIN)/python tests/faults/publishing_faults.py --seed $(SEED) --seconds $(SECONDS)
	$(BIN)/python tests/faults/store_faults.py --seed $(SEED) --seconds $(SECONDS)

# Drivers of jobs that publish to a SeaweedFS of this machine are killed, and so is the server.
KILLS ?= 300
soak-stores: $(SETUP)
	$(BIN)/python tests/faults/soak.py --kills $(KILLS) --seed $(SEED) --output s3 --runner local \
	  --lanes 2

# A month of hourly partitions, from a store into a store and an Iceberg table, under kills.
backfills: $(SETUP)
	$(BIN)/python tests/faults/backfills.py --kills 60 --seed $(SEED)

# The DAG of deploy airflow, by Airflow's own import, in an environment of its own.
AIRFLOW ?= 3.3.2
check-airflow: $(SETUP)
	test -d build/airflow || $(PYTHON) -m venv build/airflow
	build/airflow/bin/python -m pip install -q apache-airflow==$(AIRFLOW)
	mkdir -p build/airflow/dags
	$(BIN)/dpiframe deploy airflow configs/nightly.yaml > build/airflow/dags/ctr_nightly.py
	AIRFLOW_HOME=$(abspath build/airflow/home) AIRFLOW__CORE__LOAD_EXAMPLES=False \
	  build/airflow/bin/python tests/helpers/import_dag.py build/airflow/dags

# Real clusters on this machine, for ten minutes: the Jobs API under kills, and Slurm where it is there.
check-clusters: $(SETUP)
	CLUSTERS=1 $(BIN)/python -m pytest tests/pipeline/deploy/test_ray_jobs.py tests/pipeline/deploy/test_slurm.py

bench: $(SETUP)
	$(BIN)/dpiframe bench engine

# ONLY=lookup,stream measures these parts alone anew.
gpu-check: $(SETUP)
	$(BIN)/python -m pytest tests/gpu
	$(BIN)/dpiframe bench gpu --output docs/gpu $(if $(ONLY),--only $(ONLY))

# The job on one GPU, on files of every kind: writers, codecs, types, sizes. ONLY=zstd,gzip: these.
# MACHINE names it in docs/gpu.
gpu-jobs: $(SETUP)
	$(BIN)/python tests/gpu/jobs.py -o docs/gpu --machine $(MACHINE) $(if $(ONLY),--only $(ONLY))
	$(BIN)/dpiframe bench pages docs/gpu --readme README.md

# The tiles that products choose beside all others, over shapes that SEED draws.
gpu-sweep: $(SETUP)
	$(BIN)/python tests/gpu/tile_sweep.py --seed $(SEED)

# compute-sanitizer comes with the CUDA toolkit. racecheck follows kernels only in a form of their
# own, which no other build has. Where synccheck finds room for fewer barriers a CTA than a process
# has in all its kernels, it warns of an overflow and then breaks launches; with that many it found
# no memory for many launches. Both look into one CTA, so that for them launches run one by one.
BLOCKING := --force-blocking-launches
SYNCCHECK := synccheck --num-cuda-barriers 65536 $(BLOCKING)
gpu-sanitize: $(SETUP) build/racecheck/.installed
	for tool in memcheck initcheck "$(SYNCCHECK)" "racecheck $(BLOCKING)"; do \
	  for cases in "" stored persistent fp16x3 specs tensor zoo; do \
	    [ "$${tool%% *}" = racecheck ] && bin=build/racecheck/venv/bin || bin=$(BIN); \
	    compute-sanitizer --tool $$tool --error-exitcode 9 \
	      $$bin/python tests/gpu/sanitize.py $$cases || exit 1; \
	  done; \
	done
	compute-sanitizer --tool memcheck --error-exitcode 9 \
	  $(BIN)/python tests/gpu/mutated_pages.py --count 1000 --processes 1 --apart

SANITIZED := LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 build/sanitize/venv/bin/python

# Damaged files of every kind, under the sanitizers, for so long; what fails stays in build/fuzz.
fuzz: build/sanitize/.installed
	$(SANITIZED) tests/helpers/run_fuzz.py --seed $(SEED) --seconds $(SECONDS) --folder build/fuzz

# The parsers alone, in C++: cases are guided by the code that they reach (libFuzzer). Each fuzzer
# runs for so long, or with RUNS= until it has done so many cases.
fuzz-guided: $(SETUP) fuzzers
	$(BIN)/python tests/helpers/run_guided_fuzz.py --seed $(SEED) --seconds $(SECONDS) \
	  $(if $(RUNS),--runs $(RUNS)) $(if $(ONLY),--only $(ONLY)) --folder build/fuzz/guided

CLANG ?= clang++
FUZZERS := $(patsubst tests/fuzz/%.cpp,build/fuzzers/%,$(wildcard tests/fuzz/*.cpp))
FUZZED := $(wildcard csrc/parquet/*.cpp csrc/parquet/*/*.cpp csrc/codec/*.cpp \
  csrc/codec/*/*.cpp csrc/features/*.cpp)
FUZZED := $(FUZZED:%.cpp=build/fuzzers/%.o)
FUZZ_FLAGS := -std=c++20 -O1 -g -Wall -Wextra -Werror -ffp-contract=off -Icsrc -MMD -MP \
  -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer

fuzzers: $(FUZZERS)

$(FUZZERS): build/fuzzers/%: tests/fuzz/%.cpp $(FUZZED)
	$(CLANG) $(FUZZ_FLAGS) -fsanitize=fuzzer $(filter %.cpp %.o,$^) -ldl -o $@

$(filter %_avx2.o,$(FUZZED)): FUZZ_FLAGS += $(if $(filter x86_64,$(shell uname -m)),-mavx2)
build/fuzzers/%.o: %.cpp build/fuzzers/.clang
	@mkdir -p $(@D)
	$(CLANG) $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link -c $< -o $@

build/fuzzers/.clang:
	@mkdir -p $(@D)
	@echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' | \
	  $(CLANG) -x c++ - -fsanitize=fuzzer,address,undefined -o $@ 2> $@.log || \
	  { cat $@.log; echo 'fuzz-guided needs clang++ with libFuzzer and the sanitizers' \
	    '(Debian, Ubuntu: apt-get install clang libclang-rt-dev; CLANG= names another one)'; exit 1; }

-include $(FUZZERS:=.d) $(FUZZED:.o=.d)

# The tests of the compiled part on the CPU, under the address and undefined-behaviour sanitizers.
sanitize: build/sanitize/.installed
	$(SANITIZED) -m pytest $(PARALLEL) --capture=sys -m "native and not slow"

clean:
	rm -rf build $(VENV) demo_out

# What compiles comes first, so that make -j2 setup compiles while the rest is installed.
$(VENV)/.builder:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c requirements.txt $(BUILDER)
	touch $@

$(VENV)/.dependencies: requirements.txt | $(VENV)/.builder
	$(PIP) install -r requirements.txt
	touch $@

# How the compiled part is built; changes only when CUDA= or CUDA_ARCHS= asks for something else.
$(VENV)/.options: $(if $(CUDA)$(CUDA_ARCHS),FORCE) | $(VENV)/.builder
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
build/%/.installed: $(filter %.dependencies,$(SETUP)) $(SOURCES)
	$(BIN)/python -m venv --without-pip build/$*/venv
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > $$(echo build/$*/venv/lib/python*/site-packages)/dependencies.pth
	PATH=$(abspath $(BIN)):$$PATH $(PIP) --python build/$*/venv/bin/python $(INSTALL) \
	  -C build-dir=build/$*/cmake -C install.strip=false -e .
	touch $@
