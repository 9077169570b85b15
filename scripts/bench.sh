#!/usr/bin/env bash
# Runs every benchmark program of a build tree, one after the other so that they don't share the processors.
#   scripts/bench.sh BUILD_DIR [options of google-benchmark]
set -euo pipefail
build="${1:?usage: scripts/bench.sh BUILD_DIR [options]}"
shift
found=0
for program in "$build"/bench/*; do
    if [ -f "$program" ] && [ -x "$program" ]; then
        found=1
        echo "== $(basename "$program")"
        "$program" "$@"
    fi
done
if [ "$found" = 0 ]; then
    echo "bench: no benchmark in $build/bench (is google-benchmark installed?)" >&2
    exit 1
fi
