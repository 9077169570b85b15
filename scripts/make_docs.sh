#!/usr/bin/env bash
# Writes docs/cli.md from the program's own option table.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
"$ROOT/build/release/src/cli/voodoo" help --markdown >"$ROOT/docs/cli.md.tmp"
mv "$ROOT/docs/cli.md.tmp" "$ROOT/docs/cli.md"
echo "docs/cli.md written"
