#!/usr/bin/env bash
# Runs the tests of one build tree and closes with "N passed, N failed, N skipped".
#   scripts/run_tests.sh BUILD_DIR [ctest options]
# ctest itself counts a skipped test as passed; here skipped ones are counted apart.
set -euo pipefail
build="${1:?usage: scripts/run_tests.sh BUILD_DIR [ctest options]}"
shift
jobs="${VOODOO_JOBS:-$(getconf _NPROCESSORS_ONLN)}"
junit="$(cd "$build" && pwd)/test-results.xml"
rm -f "$junit"

# Tests run side by side, each with threads of its own: OpenMP threads that spin at barriers would starve the others.
export OMP_WAIT_POLICY=PASSIVE
status=0
ctest --test-dir "$build" --output-on-failure --no-tests=error -j "$jobs" --output-junit "$junit" "$@" || status=$?
exec "$(dirname "${BASH_SOURCE[0]}")/test_summary.sh" "$junit" "$status"
