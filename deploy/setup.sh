#!/bin/bash
# Makes this Debian machine able to build Weft: packages, a build cache for this
# user and, where CUDA is, headers that come in a wheel. Safe to run again; a
# second run only checks.
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

# cuDNN's C++ interface is headers in a Python wheel. Attention does without them where they cannot
# be had.
fetch_cudnn_frontend() {
  local version=1.32.0 # as in WORKSPACE
  local target="${XDG_CACHE_HOME:-${HOME:?}/.cache}/weft/cudnn-frontend-$version"
  if [[ -f "$target/include/cudnn_frontend.h" ]]; then
    say "cuDNN's C++ interface is $target"
    return
  fi
  local folder
  folder="$(mktemp -d)"
  # Its headers are the same for every Python and machine: any wheel does.
  if python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 \
      --platform manylinux_2_28_x86_64 --dest "$folder" \
      "nvidia-cudnn-frontend==$version" >/dev/null 2>&1 &&
    python3 -m zipfile -e "$folder"/*.whl "$folder/wheel" &&
    [[ -f "$folder/wheel/include/cudnn_frontend.h" ]]; then
    mkdir -p "$target"
    cp -r "$folder/wheel/include" "$target/"
    say "took cuDNN's C++ interface $version from its wheel to $target"
  else
    say "cuDNN's C++ interface could not be downloaded; attention uses its own kernels only"
  fi
  rm -rf "$folder"
}

command -v apt-get >/dev/null || die "needs a Debian system (no apt-get here)"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
install_packages
write_user_bazelrc "$root"
if [[ "${WEFT_CUDA:-}" == 0 ]]; then
  say "WEFT_CUDA=0; building for CPU only"
elif [[ -x /usr/local/cuda/bin/nvcc ]] || command -v nvcc >/dev/null; then
  say "CUDA toolkit found; kernels for sm_90a are built"
  fetch_cudnn_frontend
else
  say "no CUDA toolkit; building for CPU only"
fi
