#!/usr/bin/env bash
# What a change most often breaks: format, lengths, imports and guards of the whole repository, and
# the documentation; then vet and the tests of the packages whose Go files differ from a commit (by
# default the last one), committed or not. A change of the read path also runs a part of the tests of
# the promises. Tests that need a server run if it is installed. `make test` runs everything.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/flags.sh
export GOWORK=off
base=${1:-HEAD}
code=0
part() {
	local began=$SECONDS out
	if out=$("$@" 2>&1); then
		printf '%4d s  %s\n' $((SECONDS - began)) "$*"
	else
		code=1
		printf '%s\n%4d s  %s: FAILED\n' "$out" $((SECONDS - began)) "$*"
	fi
}

part make -s format
part scripts/house.sh
part go run ./tools/layers
part go run ./tools/mutant -check
part go test -skip '^TestSnippetsRun$|^TestReadmeCompiles$|^TestRelease$' ./internal/test/docs

# The folders of the Go files that differ, by module.
changed=$({ git diff --name-only "$base" -- '*.go'; git ls-files --others --exclude-standard -- '*.go'; } | xargs -r -n1 dirname | sort -u)
declare -A packages
for folder in $changed; do
	[ -d "$folder" ] || continue
	module=$folder
	while [ ! -f "$module/go.mod" ]; do module=$(dirname "$module"); done
	packages[$module]+=" ./$(realpath --relative-to="$module" "$folder")"
done
promises=internal/test/promises
# The packages below are tested by the promises above all. Those on the embedded Redis take a minute.
if grep -qxE '\.|internal/(rows|fetch|flight|source|limit|lease|memory|invalidation|groups|hold|conn|keys)' <<<"$changed"; then
	part go test . "./$promises" -skip 'History|Killed|Hung|Storm|SlowDatabase|UnderLoad|Idle|DatabaseFails|Attack|LeaseFirst|Trace|Expir|Everything|/^(redis|cluster|sentinel|serverless)$'
	echo "        left out: the promises on servers, and long ones (make test runs them)"
fi
if grep -q 'stats.go' <<<"$({ git diff --name-only "$base"; git ls-files --others --exclude-standard; })"; then
	part bash -c "cd otelcacheaside && go test -count=1 ."
fi
for module in "${!packages[@]}"; do
	part bash -c "cd $module && go vet -tags accept ${packages[$module]}"
	others=${packages[$module]}
	if [ "$module" = . ] && [[ " $others " == *" ./$promises "* ]]; then
		# All of these take three minutes: only those in files that differ.
		others=${others/ .\/$promises/}
		names=$({ git diff --name-only "$base" -- "$promises/*_test.go"; git ls-files --others --exclude-standard -- "$promises/*_test.go"; } |
			xargs -r grep -ohE '^func (Test|Example)[A-Za-z0-9_]*' | sed 's/^func //' | paste -sd'|')
		if [ -n "$names" ]; then part go test -run "^($names)\$" "./$promises"; fi
	fi
	if [ -n "$others" ]; then part bash -c "cd $module && go test $others"; fi
done
if [ -z "$changed" ]; then echo "no Go file differs from $base"; fi
exit $code
