#!/bin/bash
# Sets up, builds everything, and runs every test that needs no GPU.
#
#   deploy/test.sh [bazel test options]    for example --config=asan
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
deploy/setup.sh
# One broken target must not hide the results of the others.
exec bazel test --keep_going --test_tag_filters=-gpu,-manual --build_tag_filters=-manual \
  --jobs=2 --test_output=errors "$@" //...
