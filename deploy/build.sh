#!/bin/bash
# Builds the three programs and puts them side by side in bin/, where `weft run`
# looks for the other two.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
targets=(//client/cli:weft //server:weft-coordinator //worker:weft-worker)
bazel build "$@" "${targets[@]}"
out="$(bazel info "$@" bazel-bin 2>/dev/null)"
mkdir -p bin
for program in client/cli/weft server/weft-coordinator worker/weft-worker; do
  # Copies, so that the next build does not change a running job's programs; by
  # rename, since a running one cannot be written to.
  install -m 755 "$out/$program" "bin/.$(basename "$program").next"
  mv -f "bin/.$(basename "$program").next" "bin/$(basename "$program")"
done
echo "build: bin/weft bin/weft-coordinator bin/weft-worker"
