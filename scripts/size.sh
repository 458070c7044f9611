#!/bin/sh
# Prints the lines of code of each package of the library proper, and their sum.
set -e
cd "$(dirname "$0")/.."
exec go run ./scripts/size
