#!/usr/bin/env bash
# All tests with the race detector, of the modules that it is given. All is compiled and vetted first, for the race detector only: most of it is needed in no other form; then the modules that have few packages are tested two at a time, and the root by itself: go test runs its packages two at a time.
set -euo pipefail
cd "$(dirname "$0")/.."
export GOWORK=off
mkdir -p bin
for m in "$@"; do
	(cd "$m" && go list -race -test -deps -export ./... >/dev/null)
done

go vet -race ./... # of the other modules make lint does it: here it would take as long as their tests, for what they depend on

# lane MODULE...: one after the other; what they say is printed when each is through
lane() {
	local failed=0
	for m in "$@"; do
		local log="bin/test-${m//\//-}.log"
		(cd "$m" && go test -p 1 -race -vet=off -timeout 10m ./...) >"$log" 2>&1 || failed=1
		{ echo "== $m"; cat "$log"; }
	done
	return $failed
}

code=0
# pair "MODULE..." "MODULE...": two lanes at a time
pair() {
	lane $1 & local one=$!
	lane $2 || code=1
	wait $one || code=1
}

first=() second=() heavy=() root=
for m in "$@"; do
	case $m in
	.) root=. ;;
	canal/mysqlbinlog) first+=("$m") ;; # it takes longer than the others together
	torture | examples/lab/browser) heavy+=("$m") ;; # processes and a browser of their own, which leave a server that must answer in a second too little
	*) second+=("$m") ;;
	esac
done
pair "${first[*]}" "${second[*]}"
pair "${heavy[0]:-}" "${heavy[1]:-}"
[ $code = 0 ] || exit $code
if [ -n "$root" ]; then
	echo "== ."
	go test -race -vet=off -timeout 10m ./...
fi
