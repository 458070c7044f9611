#!/usr/bin/env bash
# Runs tests with the other supported release of Go, which comes as a module: what a release can
# change without an error of the compiler. These are the codecs, keys, the memory tier, texts in
# JSON, and the read path on the embedded Redis. With -all it runs all tests of all modules, as a
# release of the library does.
set -euo pipefail
cd "$(dirname "$0")/.."
older=go1.26.8 newer=go1.27.4
case $(go env GOVERSION) in
"${older%.*}"*) export GOTOOLCHAIN=$newer ;;
*) export GOTOOLCHAIN=$older ;;
esac
go version
if [ "${1:-}" = -all ]; then
	exec scripts/test.sh
fi
. scripts/flags.sh
export GOWORK=off
go vet ./internal/codec/... ./msgpack
go test -vet=off -count=1 ./internal/codec/... ./msgpack ./internal/keys ./internal/memory \
	./internal/wording ./internal/errtree ./canal/envelope ./canal/parking
# The matrix of servers, and what waits long, are the same with each release. The Examples of the
# root, most of which need SQLite, call what the promises test.
go test -tags nosqlite -vet=off -count=1 -skip '^TestHistory|Attack|Storm|Killed|Hung|Weight|^TestCostOf|^Example|/^(redis|cluster|sentinel|serverless)$' . ./internal/test/promises
