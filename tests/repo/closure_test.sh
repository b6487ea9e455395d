#!/bin/bash
# closure_test.sh LABELS FORBIDDEN ALLOWED
set -euo pipefail

[[ -s "$1" ]] || { echo "no labels in $1"; exit 1; }
if found="$(grep -E "$2" "$1" | grep -vE "$3")"; then
  echo "not to be reached from here:"
  echo "$found"
  exit 1
fi
