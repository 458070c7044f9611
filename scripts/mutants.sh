#!/usr/bin/env bash
# Builds the library once for each guard that internal/mutant/list.txt names, without that guard, and shows that the test named for it
# fails. A mutant that survives, a test that does not exist and a guard that is not listed fail the run.
# Arguments: names of mutants, to run only these.
set -uo pipefail
cd "$(dirname "$0")/.."
list=internal/mutant/list.txt
mkdir -p bin
log=$(mktemp)
trap 'rm -f "$log"' EXIT
bad=0 total=0
missing=$(comm -3 <(sed -n 's/^\t[A-Za-z]* *= "\([a-z_]*\)".*/\1/p' internal/mutant/mutant.go | sort) <(grep -v '^#' $list | cut -d'|' -f1 | tr -d " " | sort -u))
if [ -n "$missing" ]; then
	echo "in only one of mutant.go and list.txt: $missing"
	bad=1
fi
while IFS='|' read -r name package test what; do
	name=${name// /} package=${package// /} test=${test// /}
	case "$name" in '' | '#'*) continue ;; esac
	if [ $# -gt 0 ] && [[ " $* " != *" $name "* ]]; then continue; fi
	total=$((total + 1))
	if ! go test -c -tags "mutant_$name" -o bin/mutant.test "./$package" >"$log" 2>&1; then
		echo "BROKEN    $name does not build"; cat "$log"; bad=1; continue
	fi
	if [ -z "$(bin/mutant.test -test.list "^$test\$" 2>/dev/null)" ]; then
		echo "NO TEST   $name: $test in $package"; bad=1; continue
	fi
	if (cd "$package" && "$OLDPWD/bin/mutant.test" -test.run "^$test\$" -test.timeout 120s) >"$log" 2>&1; then
		echo "SURVIVED  $name: $test passes without it"; bad=1
	else
		printf 'killed    %-20s %-32s %s\n' "$name" "$test" "${what# }"
	fi
done <$list
rm -f bin/mutant.test
echo "$total mutants"
exit $bad
