#!/usr/bin/env bash
# Compiles the modules that users import for a processor of 32 bits, and runs there the tests of the
# packages that compute with sizes and bits. Most processors of 64 bits run them. Where the kernel
# cannot, the tests are compiled for ARM and run by QEMU, which cannot run Go's threads on a 386.
# There is no race detector for 32 bits, and no test of a server is run twice.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/flags.sh
export GOWORK=off GOARCH=386 CGO_ENABLED=0
hello=$(mktemp -d)
trap 'rm -rf "$hello"' EXIT
printf 'package main\nfunc main() {}\n' >"$hello/main.go"
go build -o "$hello/main" "$hello/main.go"
run=()
if ! "$hello/main" 2>/dev/null; then
	if ! command -v qemu-arm >/dev/null && command -v apt-get >/dev/null; then
		sudo=
		[ "$(id -u)" = 0 ] || sudo=sudo
		$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends qemu-user >&2
	fi
	export GOARCH=arm
	run=(-exec qemu-arm)
fi
for module in $(git ls-files '*go.mod' 'go.mod' | sort -u | xargs -n1 dirname | grep -vE '^(bench|torture|examples/.*)$'); do
	# not examples, tools and helpers of tests, nor SQLite, which some of them need
	(cd "$module" && go build $(go list ./... | grep -vE '^github.com/cacheaside/cacheaside/(examples|tools|internal/test)/'))
done
tests() { go test "${run[@]}" -tags nosqlite -vet=off -count=1 "$@"; }
tests ./internal/memory ./internal/conn ./bloom/internal/bitmap
# What waits for timeouts is the same with each processor.
tests -skip 'Delayed|EndOfAnAwaitedLease|TripsOfFirst' ./internal/lease
tests -run 'Bits|FalsePos|Hash|Local$|LocalOptions|RebuildOptions|Estimated|Save|Full' ./bloom
tests -run 'TestMemoryBytesOutOfRange' ./internal/test/bounded
