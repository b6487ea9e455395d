#!/usr/bin/env bash
# Arguments: a Python test, then what it takes.
exec python3 "$@"
