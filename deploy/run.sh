#!/bin/bash
# Sets up, builds, and runs one job on this machine.
#
#   deploy/run.sh [JOB.yaml] [options of `weft run`]
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
job="$root/configs/jobs/seqrev.yaml"
if (($# > 0)) && [[ "$1" != -* ]]; then
  [[ -f "$1" ]] || { echo "run: error: no job file $1" >&2; exit 1; }
  job="$(realpath "$1")"
  shift
fi

"$root/deploy/setup.sh"
"$root/deploy/build.sh"
exec "$root/bin/weft" run "$job" "$@"
