#!/usr/bin/env bash
# Runs clang-tidy with .clang-tidy over our sources.
#   scripts/tidy.sh                     all of src, tools and bench
#   scripts/tidy.sh FILE...             these files
#   scripts/tidy.sh --changed [REV]     the files that differ from REV (default: where this branch left
#                                       origin/main, else HEAD~1), at most VOODOO_TIDY_FILES of them (default 24)
# VOODOO_TIDY_SECONDS (default 3600) bounds the whole run: files that it leaves no time for are named, not checked.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"
jobs="${VOODOO_JOBS:-$(getconf _NPROCESSORS_ONLN)}"
max_files="${VOODOO_TIDY_FILES:-24}"
max_seconds="${VOODOO_TIDY_SECONDS:-3600}"
command -v clang-tidy >/dev/null || { echo "tidy: clang-tidy is missing: scripts/bootstrap.sh --dev --deps-only" >&2; exit 1; }

base_revision() {
    local base head
    head="$(git rev-parse HEAD)"
    if base="$(git merge-base HEAD origin/main 2>/dev/null)" && [ "$base" != "$head" ]; then echo "$base"
    elif base="$(git rev-parse -q --verify 'HEAD~1')"; then echo "$base"
    else git hash-object -t tree /dev/null  # a first commit: everything has changed
    fi
}

files=()
if [ "${1:-}" = --changed ]; then
    base="${2:-$(base_revision)}"
    mapfile -t files < <(git diff --name-only --diff-filter=AMR "$base" -- 'src/*.cpp' 'tools/*.cpp' 'bench/*.cpp')
    if [ "${#files[@]}" -gt "$max_files" ]; then
        echo "tidy: ${#files[@]} files have changed, checking the first $max_files"
        files=("${files[@]:0:$max_files}")
    fi
elif [ "$#" -gt 0 ]; then
    files=("$@")
else
    mapfile -t files < <(git ls-files --cached --others --exclude-standard -- 'src/*.cpp' 'tools/*.cpp' 'bench/*.cpp')
fi
if [ "${#files[@]}" = 0 ]; then
    echo "tidy: no file to check"
    exit 0
fi

cmake --preset tidy >/dev/null
deadline=$(($(date +%s) + max_seconds))
export deadline
check_one() {
    local left=$((deadline - $(date +%s))) output status=0
    if [ "$left" -le 0 ]; then echo "tidy: no time left for $1"; return 0; fi
    output="$(timeout "$left" clang-tidy --quiet -p build/tidy "$1" 2>&1)" || status=$?
    if [ "$status" = 124 ]; then echo "tidy: no time left for $1"; return 0; fi
    if [ "$status" != 0 ]; then
        printf '%s\n' "$output" | grep -v 'warnings\? generated' || true
        echo "tidy: $1 has findings"
        return 1
    fi
}
export -f check_one
echo "tidy: ${#files[@]} files"
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$jobs" bash -c 'check_one "$1"' _
echo "tidy: clean"
