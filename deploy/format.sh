#!/bin/bash
# Formats the C++ and CUDA files that git knows or would add; with arguments,
# only those files.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
if (($# > 0)); then
  exec clang-format -i "$@"
fi
git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cc' '*.cu' '*.cuh' |
  xargs -0 -r -P 2 -n 20 clang-format -i
