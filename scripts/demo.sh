#!/usr/bin/env bash
# The main job on the small trained model that the repository holds: learn a layout for a size, export, compare.
#   scripts/demo.sh [more options of `voodoo quantize`]
# Environment: VOODOO_DEMO_MODEL, VOODOO_DEMO_SIZE, VOODOO_DEMO_DIR.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
voodoo="$ROOT/build/release/src/cli/voodoo"
model="${VOODOO_DEMO_MODEL:-$ROOT/tests/data/tiny.gguf}"
size="${VOODOO_DEMO_SIZE:-800KiB}"
out="${VOODOO_DEMO_DIR:-$ROOT/build/demo}"

[ -x "$voodoo" ] || { echo "demo: $voodoo is missing: run make bootstrap" >&2; exit 1; }
[ -f "$model" ] || { echo "demo: $model is missing" >&2; exit 1; }
# A demo shows the whole job, so it starts from nothing.
rm -rf "$out"
mkdir -p "$out"
set -x
"$voodoo" quantize "$model" --size "$size" --run "$out/run" -o "$out/tiny-voodoo.gguf" "$@"
