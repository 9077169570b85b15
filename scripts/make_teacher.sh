#!/usr/bin/env bash
# Makes the BF16 teachers of SmolLM2-135M that docs/results.md uses, in build/teacher/:
#   smollm2-576.gguf  the model's own width, where most rows are no multiple of 256
#   smollm2-768.gguf  the same function padded with zeros to 768, where every type is legal
# Needs Python 3 with venv, and a package registry.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
out="$ROOT/build/teacher"
venv="$ROOT/build/teacher-venv"
mkdir -p "$out"
if [ ! -f "$venv/ready" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check 'gguf==0.19.0' 'numpy==2.4.6'
    touch "$venv/ready"
fi
make_one() {  # make_one "OPTIONS" FILE
    if [ -f "$2" ]; then echo "$2 is there already"; return; fi
    "$venv/bin/python" "$ROOT/scripts/make_smollm2_teacher.py" --cache "$out" --output "$2" $1  # $1: options, or nothing
}
make_one "" "$out/smollm2-576.gguf"
make_one --pad768 "$out/smollm2-768.gguf"
# The results in docs/results.md are of exactly these files.
(cd "$out" && sha256sum --check "$ROOT/scripts/teacher.sha256")
