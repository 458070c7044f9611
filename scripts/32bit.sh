#!/usr/bin/env bash
# Compiles the modules that users import for a processor of 32 bits, and runs there the tests of the
# packages that compute with sizes and bits. A processor of 64 bits runs them. There is no race
# detector for 32 bits, and no test of a server is run twice.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/flags.sh
export GOWORK=off GOARCH=386 CGO_ENABLED=0
for module in $(git ls-files '*go.mod' 'go.mod' | sort -u | xargs -n1 dirname | grep -vE '^(bench|torture|examples/.*)$'); do
	(cd "$module" && go build ./...)
done
go test -vet=off -count=1 ./internal/memory ./internal/lease ./internal/conn ./bloom/internal/bitmap
go test -vet=off -count=1 -run 'Bits|FalsePos|Hash|Local$|LocalOptions|RebuildOptions|Estimated|Save|Full' ./bloom
go test -vet=off -count=1 -run 'TestMemoryBytesOutOfRange' ./internal/test/bounded
