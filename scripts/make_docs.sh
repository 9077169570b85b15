#!/usr/bin/env bash
# Writes docs/cli.md, docs/config.md and configs/default.toml from the program's own option table.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
write() {  # write KIND FILE
    "$ROOT/build/release/src/cli/voodoo" --print-docs "$1" >"$ROOT/$2.tmp"
    mv "$ROOT/$2.tmp" "$ROOT/$2"
    echo "$2 written"
}
write cli docs/cli.md
write config docs/config.md
write toml configs/default.toml
