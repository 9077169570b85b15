#!/usr/bin/env bash
# Builds everything of ours with the address and undefined-behaviour sanitizers and runs the tests.
#   scripts/asan.sh [ctest options]
# llama.cpp's libraries are not instrumented, which the options below allow for.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"
jobs="${VOODOO_JOBS:-$(getconf _NPROCESSORS_ONLN)}"

# detect_odr_violation=0: ggml's libraries and our tests may define the same globals of header-only libraries.
# detect_container_overflow=0: containers that cross into uninstrumented code would give false reports.
# lsan.supp: what the uninstrumented libraries never free (backend registry, OpenMP's threads).
export ASAN_OPTIONS="detect_odr_violation=0:detect_container_overflow=0:strict_string_checks=1:abort_on_error=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
export LSAN_OPTIONS="suppressions=$ROOT/scripts/lsan.supp:print_suppressions=0${LSAN_OPTIONS:+:$LSAN_OPTIONS}"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}"

cmake --preset asan >/dev/null
# The build runs each test program once to list its tests, so it needs the options too.
cmake --build build/asan -j "$jobs"
# Instrumented code is several times slower: every test's own time limit is stretched.
exec scripts/run_tests.sh build/asan "$@"
