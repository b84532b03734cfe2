# The commands a person types. Everything here may be run again at any time; only what is missing or changed is done.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
JOBS ?= $(shell nproc)
ARGS ?=
FUZZ_SECONDS ?= 60
# A crash, a leak, an input that takes longer (s) or more memory (MiB) fails; the input is kept in build/fuzz.
FUZZ_LIMITS := -timeout=10 -rss_limit_mb=2048 -verbosity=0 -artifact_prefix=build/fuzz/
# A space, for lists of other separators.
space := $(subst ,, )
BIN := build/release/bin
# What `make build-cuda` builds; plait_cuda alone is all that differs from the other builds.
CUDA_TARGETS ?= plait plait-run
# Test presets of `make sanitize`; and which tests it runs.
SANITIZERS ?= asan-ubsan tsan
SANITIZE_LABELS ?= unit dist

.PHONY: help setup build build-cuda train test lint format bench bench-peers reference oracle validate sanitize fuzz clean

help:  ## say what the targets do
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup:  ## install what is missing: compilers and libraries from Debian, libtorch from PyPI
	@scripts/setup build

build: setup  ## build plait and plait-run into build/release/bin
	@echo "make: configuring and building build/release (preset release)"
	@cmake --preset release >build/release.configure.log 2>&1 || { cat build/release.configure.log; exit 1; }
	@cmake --build --preset release --parallel $(JOBS) --target plait plait-run
	@echo "make: built $(BIN)/plait and $(BIN)/plait-run"

build-cuda: setup  ## build plait and plait-run that can also compute on GPUs into build/cuda/bin (docs/gpu.md)
	@echo "make: configuring and building build/cuda (preset cuda): $(CUDA_TARGETS)"
	@cmake --preset cuda >build/cuda.configure.log 2>&1 || { cat build/cuda.configure.log; exit 1; }
	@cmake --build --preset cuda --parallel $(JOBS) --target $(CUDA_TARGETS)

train: build  ## train a small model on the King James Bible over two ranks (flags: make train ARGS="--steps 100")
	@echo "make: $(BIN)/plait train $(ARGS)"
	@$(BIN)/plait train $(ARGS)

test: build  ## build and run all tests
	@echo "make: building the tests"
	@cmake --build --preset release --parallel $(JOBS)
	@ctest --preset release --parallel $(JOBS)

lint:  ## formatting, house rules and clang-tidy; what passed is not looked at again until it changes
	@scripts/setup build lint
	@scripts/lint --jobs $(JOBS)

format:  ## rewrite our sources with clang-format
	@scripts/setup lint
	@git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cpp' | xargs -0 clang-format -i
	@echo "make: formatted"

bench: build  ## build and run the benchmarks (flags: make bench ARGS="--benchmark_filter=verify")
	@cmake --build --preset release --parallel $(JOBS)
	@for program in $(BIN)/*_bench; do \
	  [[ -x $$program ]] || { echo "make: no benchmark program in $(BIN)" >&2; exit 1; }; \
	  echo "make: $$program"; $$program $(ARGS); done

bench-peers: build  ## time training steps of Plait and PyTorch in turn (flags: make bench-peers ARGS="--configs A B")
	@scripts/setup oracle
	@scripts/bench-peers $(ARGS)

reference: build  ## write docs/reference.md anew: all commands and flags
	@scripts/write-reference --plait $(BIN)/plait
	@echo "make: wrote docs/reference.md"

oracle:  ## compare with full PyTorch and transformers, in an environment of their own (.venv-oracle)
	@scripts/setup oracle
	@shopt -s nullglob; for check in tests/oracle/*.py; do \
	  echo "make: $$check"; .venv-oracle/bin/python $$check $(ARGS); done

validate: build  ## hold the simulator to published measurements; writes docs/validation.md
	@cmake --build --preset release --parallel $(JOBS) --target plait-validate
	@$(BIN)/plait-validate --out docs/validation.md $(ARGS)
	@echo "make: wrote docs/validation.md"

sanitize: setup  ## run the unit and dist tests under the address, undefined-behaviour and thread sanitizers
	@for preset in $(SANITIZERS); do \
	  echo "make: preset $$preset"; \
	  cmake --preset $$preset >/dev/null; \
	  cmake --build --preset $$preset --parallel $(JOBS) --target $(SANITIZE_LABELS:%=tests-%); \
	  ctest --preset $$preset --parallel $(JOBS) -L '^($(subst $(space),|,$(SANITIZE_LABELS)))$$'; done

fuzz:  ## feed the parsers and the verifier with damaged files (make fuzz FUZZ_SECONDS=600)
	@scripts/setup build fuzz
	@cmake --preset fuzz >/dev/null
	@cmake --build --preset fuzz --parallel $(JOBS)
	@for kind in text csv verify; do \
	  case $$kind in verify) seeds="tests/error tests/error/field tests/error/sound" ;; *) seeds=tests/fuzz/corpus/$$kind ;; esac; \
	  echo "make: fuzzing $$kind for $(FUZZ_SECONDS) s"; \
	  mkdir -p build/fuzz/found/$$kind; \
	  build/fuzz/bin/plait_$${kind}_fuzz -max_total_time=$(FUZZ_SECONDS) $(FUZZ_LIMITS) build/fuzz/found/$$kind $$seeds; \
	  echo "make: $$kind: nothing found"; done

clean:  ## remove everything that was built here
	rm -rf build
