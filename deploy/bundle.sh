#!/bin/bash
# Builds programs that run on a machine without our Debian packages, with the
# shared libraries that they need in lib/ beside them.
#
#   deploy/bundle.sh FOLDER TARGET...     for example  gpu-bundle //worker:weft-worker
#
# CUDA's libraries stay out: the GPU machine has its own, found through
# LD_LIBRARY_PATH.
set -euo pipefail

(($# >= 2)) || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder="$1"
shift
bazel build --config=portable "$@"
out="$(bazel info --config=portable bazel-bin 2>/dev/null)"
mkdir -p "$folder/lib"
for target in "$@"; do
  path="${target#//}"
  program="$out/${path/:/\/}"
  install -m 755 "$program" "$folder/"
  # glibc comes with every machine, and must match its own loader.
  ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
    { grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*|libcublas[^/]*|libcudnn[^/]*|libnccl|libnvrtc[^/]*|libcuda[^/]*)\.so' || true; } |
    xargs -r -I{} install -m 644 {} "$folder/lib/"
done
# A library does not inherit the program's search path, hence the variable.
echo "bundle: $folder ($(du -sh "$folder" | cut -f1)); run with LD_LIBRARY_PATH=$folder/lib"
