#!/usr/bin/env bash
# Builds the tests with the tag that lets guards be taken out, and shows for each guard that internal/mutant/list.txt names that the test named for
# it fails without it (make test shows that it passes with it). A test that only hangs has not seen it. A mutant that survives, a test that does not exist and a guard that is not listed fail the run.
# Arguments: names of mutants, to run only these. Or --share N: every Nth of them, each commit another share, so that some N commits go through all.
set -uo pipefail
cd "$(dirname "$0")/.."
list=internal/mutant/list.txt
share=1 first=0
if [ "${1:-}" = --share ]; then
	share=$2
	first=$((16#$(git rev-parse --short=7 HEAD) % share))
	set --
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rows() { grep -v '^#' $list | tr -s ' ' | sed 's/ *| */|/g; s/ *$//'; }
unlisted=$(comm -3 <(sed -n 's/^\t[A-Za-z]* *= "\([a-z_]*\)".*/\1/p' internal/mutant/mutant.go | sort) <(rows | cut -d'|' -f1 | sort -u))
if [ -n "$unlisted" ]; then
	echo "in only one of mutant.go and list.txt:" $unlisted
	exit 1
fi
bin() { echo "$work/$(echo "$1" | tr ./ __).test"; }
# chosen are the rows that are run
chosen() {
	local row=0 name rest
	while IFS='|' read -r name rest; do
		if [ -n "$names" ] && [[ " $names " != *" $name "* ]]; then continue; fi
		row=$((row + 1))
		if [ $((row % share)) -eq $first ]; then echo "$name|$rest"; fi
	done < <(rows)
}
names=$*
for package in $(chosen | cut -d'|' -f2 | sort -u); do
	(cd "$package" && GOWORK=off go test -c -tags mutants -o "$(bin "$package")" .) || exit 1 # some are modules of their own
done

# one NAME PACKAGE TEST WHAT
one() {
	local name=$1 package=$2 test=$3 what=$4 began=$SECONDS
	local bin log="$work/$name.$(echo "$package" | tr ./ __).log" limit=120s sign='^ *--- FAIL|^panic: |^fatal error: '
	if [ "$package" = torture ]; then # where much can go wrong beside what is looked for
		limit=180s sign=' VIOLATION '
	fi
	local more=()
	if [ "$test" = TestConsumerIsKilled ]; then # it is long, says what it finds, and finds more with more kills
		limit=300s sign=' keys are stale|nobody has caught up' more=(-kill.kills=15)
	fi
	bin=$(bin "$package")
	if ! (cd "$package" && "$bin" -test.list "^${test%%/*}\$") 2>/dev/null | grep -qx "${test%%/*}"; then
		echo "NO TEST   $name: $test in $package"
		return 1
	fi
	local tries=1 passed=0
	[[ $test != *History* ]] || tries=2 # histories find by chance, and less of it on a busy machine
	while [ $passed -lt $tries ] && (cd "$package" && CACHEASIDE_MUTANT=$name "$bin" -test.run "^${test/\//$/^}\$" -test.timeout "$limit" "${more[@]}") >"$log" 2>&1; do
		passed=$((passed + 1))
	done
	if [ $passed = $tries ]; then
		echo "SURVIVED  $name: $test passes without it"
		return 1
	fi
	if grep -q '^panic: test timed out' "$log"; then
		echo "SURVIVED  $name: $test does not see it, only the limit of $limit does"
		return 1
	fi
	if ! grep -qE "$sign" "$log"; then
		echo "BROKEN    $name: $test did not run"
		cat "$log"
		return 1
	fi
	printf 'killed    %-18s by %-50s in %2d s: %s\n' "$name" "$test" $((SECONDS - began)) "$what"
}

bad=0 total=0
while IFS='|' read -r name package test what; do
	total=$((total + 1))
	while [ "$(jobs -rp | wc -l)" -ge 3 ]; do wait -n || bad=1; done
	one "$name" "$package" "$test" "$what" &
done < <(chosen)
while [ -n "$(jobs -rp)" ]; do wait -n || bad=1; done
wait
echo "$total of $(rows | wc -l) mutants"
exit $bad
