#!/usr/bin/env bash
# Random changes of the lines that differ from a commit (by default the last one): reports which of
# them the tests of the same folder do not notice. It refuses nothing: a test in another folder may
# notice them. The root package is left out, because its tests take too long for that.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/flags.sh
# A cached run of the tests would take too little time to derive the time limit from it.
export GOFLAGS="$GOFLAGS -count=1" GOWORK=off
# The tool compares the names in the difference with names relative to the folder.
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=diff.relative GIT_CONFIG_VALUE_0=true
base=$(git rev-parse --verify "${1:-HEAD}^{commit}") || exit
top=$PWD
git diff --name-only --diff-filter=d --merge-base "$base" -- '*.go' ':!*_test.go' | xargs -r -n1 dirname | sort -u |
	while read -r folder; do
		if [ "$folder" = . ]; then continue; fi
		echo "=== $folder"
		(cd "$folder" && nice -n 19 go run github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0 \
			unleash --workers 1 --timeout-coefficient 10 --diff "$base" "$top/$folder" </dev/null) |
			grep -v ' SKIPPED '
	done
exit 0
