#!/usr/bin/env bash
# What a program costs that only reads, beside one that uses go-redis alone, and one that uses
# sturdyc over go-redis: packages and modules that it links besides the standard library, the size
# of the stripped program, and the time to compile it with nothing compiled before, the median of
# RUNS (3; 0: it is not measured). Fails if it is larger than it was found to be, with a margin.
set -euo pipefail
cd "$(dirname "$0")/.."
export GOWORK=off
runs=${RUNS:-3}
out=$(mktemp -d)
trap 'chmod -R u+w "$out" && rm -rf "$out"' EXIT

# program NAME MODULE PACKAGE: measures one; its size is in $size afterwards.
program() {
	local name=$1 seconds=() cold=- packages modules
	cd "$2"
	go build -trimpath -ldflags=-s -o "$out/$name" "$3"
	for _ in $(seq "$runs"); do
		rm -rf "$out/cache"
		local began=$EPOCHREALTIME
		GOCACHE=$out/cache go build -trimpath -ldflags=-s -o "$out/cold" "$3"
		seconds+=("$(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN {printf "%.1f", b - a}')")
	done
	[ "$runs" = 0 ] || cold=$(printf '%s\n' "${seconds[@]}" | sort -n | sed -n "$(((runs + 1) / 2))p")
	packages=$(go list -deps -f '{{if not .Standard}}{{.ImportPath}}{{end}}' "$3" | grep -vc "$(go list "$3")\$")
	modules=$(go version -m "$out/$name" | grep -c $'^\tdep\t')
	size=$(stat -c %s "$out/$name")
	cd "$OLDPWD"
	awk -v n="$name" -v p="$packages" -v m="$modules" -v s="$size" -v b="${base:-$size}" -v c="$cold" \
		'BEGIN {printf "%-32s %8d %7d %9.2f MB %+8.2f MB %9s s\n", n, p, m, s / 1e6, (s - b) / 1e6, c}'
}

printf '%-32s %8s %7s %12s %11s %11s\n' program packages modules stripped beyond cold
program go-redis . ./internal/test/linked/plain
base=$size
program sturdyc bench ./linked
program cacheaside . ./internal/test/linked/get
beyond=$((size - base))
program "cacheaside, three loaders" . ./internal/test/linked/loaders
if [ "$beyond" -gt 1570000 ]; then
	echo "FAIL: a program that only reads is $beyond bytes larger than one with go-redis alone; at most 1570000"
	exit 1
fi
