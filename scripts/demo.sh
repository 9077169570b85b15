#!/usr/bin/env bash
# The main job on the small trained model that the repository holds: take the size of a stock preset, learn a layout for that
# size, export, and measure both files on text that neither has seen.
#   scripts/demo.sh [more options of `voodoo quantize`]
# Environment: VOODOO_DEMO_PRESET (IQ3_XXS), VOODOO_DEMO_DIR (build/demo).
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"
voodoo=build/release/src/cli/voodoo
llama_quantize=third_party/llama-build/bin/llama-quantize
model=models/tiny-llama.gguf
preset="${VOODOO_DEMO_PRESET:-IQ3_XXS}"
out="${VOODOO_DEMO_DIR:-build/demo}"

[ -x "$voodoo" ] || { echo "demo: $voodoo is missing: run make bootstrap" >&2; exit 1; }
# A demo shows the whole job, so it starts from nothing.
rm -rf "$out"
mkdir -p "$out"
data=(--text models/tiny-train.txt --chunk-len 256 --tokens 98304 --valid-tokens 16384)

echo "== calibration data and importance matrix"
"$voodoo" data --model "$model" --output-dir "$out/run" "${data[@]}"
echo "== the stock preset $preset by llama-quantize, with the same importance matrix"
"$llama_quantize" --imatrix "$out/run/imatrix.gguf" "$model" "$out/stock-$preset.gguf" "$preset" >"$out/llama-quantize.log" 2>&1
size="$(stat -c %s "$out/stock-$preset.gguf")"
echo "== a learned layout of at most the same size: $size bytes"
"$voodoo" quantize "$model" --size "$size" --run "$out/run" -o "$out/voodoo.gguf" "${data[@]}" "$@"
echo "== both against the original, on held-out text"
"$voodoo" eval --reference "$model" --model "$out/voodoo.gguf" "$out/stock-$preset.gguf" --text models/tiny-valid.txt --ctx-size 256 --chunks 120
