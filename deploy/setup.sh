#!/bin/bash
# Makes this Debian machine able to build Weft: packages, and a build cache for
# this user. Safe to run again; a second run only checks.
set -euo pipefail

PACKAGES=(
  # Build.
  bazel-bootstrap bazel-platforms bazel-rules-java bazel-rules-proto bazel-skylib
  clang-format default-jdk-headless g++ git pkg-config python3
  # Processes talk.
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libssl-dev
  # Vocabulary, settings, logs, state.
  libabsl-dev libcli11-dev libfmt-dev libspdlog-dev libsqlite3-dev libyaml-cpp-dev
  nlohmann-json3-dev
  # Kernels and bytes.
  libdnnl-dev libhwy-dev libisal-dev libzstd-dev
  # Tests.
  libbenchmark-dev libgmock-dev libgtest-dev
)

say() { echo "setup: $*"; }
die() { echo "setup: error: $*" >&2; exit 1; }

missing_packages() {
  local installed package
  installed="$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' "${PACKAGES[@]}" 2>/dev/null |
    sed -n 's/^ii  *//p' || true)"
  for package in "${PACKAGES[@]}"; do
    grep -qxF "$package" <<<"$installed" || echo "$package"
  done
}

install_packages() {
  local missing=() as_root=()
  mapfile -t missing < <(missing_packages)
  if ((${#missing[@]} == 0)); then
    say "all ${#PACKAGES[@]} packages are installed"
    return
  fi
  if ((EUID != 0)); then
    command -v sudo >/dev/null ||
      die "needs root or sudo to install: ${missing[*]}"
    as_root=(sudo)
  fi
  # CI and containers have no terminal to answer a question on.
  as_root+=(env DEBIAN_FRONTEND=noninteractive)
  local install=("${as_root[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}")
  say "installing ${#missing[@]} packages: ${missing[*]}"
  if ! "${install[@]}" >/dev/null 2>&1; then
    say "refreshing the package lists first"
    "${as_root[@]}" apt-get update -q >/dev/null || die "apt-get update failed"
    "${install[@]}" >/dev/null || die "apt-get install failed"
  fi
}

# A build reads what another clone of this user's already made. The file is
# rewritten only when it would change, since Bazel rereads it.
write_user_bazelrc() {
  local root="$1"
  local cache="${XDG_CACHE_HOME:-${HOME:?}/.cache}/weft/bazel-disk"
  local rc="$root/user.bazelrc"
  local text="# Written by deploy/setup.sh.
build --disk_cache=$cache"
  mkdir -p "$cache"
  # Bazel never removes anything from it.
  find "$cache" -type f -atime +30 -delete
  if [[ -f "$rc" && "$(<"$rc")" == "$text" ]]; then
    say "build cache is $cache"
    return
  fi
  printf '%s\n' "$text" >"$rc"
  say "build cache is $cache (wrote user.bazelrc)"
}

command -v apt-get >/dev/null || die "needs a Debian system (no apt-get here)"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
install_packages
write_user_bazelrc "$root"
if [[ -x /usr/local/cuda/bin/nvcc ]] || command -v nvcc >/dev/null; then
  say "CUDA toolkit found; kernels for sm_90a are built"
else
  say "no CUDA toolkit; building for CPU only"
fi
