#!/bin/sh
echo "coverage reports are not built here" >&2
exit 1
