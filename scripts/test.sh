#!/usr/bin/env bash
# Runs all tests of all modules of the repository. Everything runs to its end, whatever
# fails. The last lines say what has failed, and the command that runs just that test.
# No result is taken from Go's cache of test results. Beside what flags.sh says, the tests are linked
# without DWARF, and the compiler collects its garbage less often, which saves 7 % of the time
# with an empty build cache; the limit keeps its memory as it was.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/flags.sh
. scripts/memory.sh
export GOWORK=off GOFLAGS="$GOFLAGS -ldflags=-w '-toolexec=env GOGC=400 GOMEMLIMIT=1200MiB'"
rm -rf bin/test
mkdir -p bin/test
parts=() here=$PWD

# cpu sets used to the seconds of CPU that the commands have taken that have ended so far.
cpu() {
	times >bin/test/times # in a subshell it would count only that
	used=$(awk -F'[ms ]' 'NR == 2 { printf "%.0f", 60 * ($1 + $4) + $2 + $5 }' bin/test/times)
}

# part NAME COMMAND...: runs a part, and notes how long it took.
part() {
	local name=$1 began=$SECONDS before code
	cpu
	before=$used
	shift
	echo "== $name"
	"$@"
	code=$?
	cpu
	parts+=("$(printf '%5d s, %5d s of CPU  %s' $((SECONDS - began)) $((used - before)) "$name")")
	return $code
}

# run FILE MODULE COMMAND ARGUMENTS...: runs `COMMAND ARGUMENTS` in the folder of a module.
# What it says goes to bin/test/FILE.json. COMMAND is what a person types to repeat it.
run() {
	local file=$1 module=$2 command=$3
	shift 3
	(cd "$module" && GOWORK=$(workspace "$module") bash -c "$command"' -json -vet=off -timeout 30m "$@"' run "$@" 2>&1) |
		bin/report -module "$module" -as "$command" -to "bin/test/$file.json"
}

# The modules, by how they are tested. Two have no race detector, and share what is compiled
# without it: bench, whose product is figures, and the lab's browser, which looks at another
# process. The library's races are looked for where it is tested.
plain=(bench examples/lab/browser)
raced=()
while read -r m; do
	if [[ " ${plain[*]} " != *" $m "* ]]; then raced+=("$m"); fi
done < <(git ls-files go.mod '*/go.mod' | xargs -n1 dirname | sort)

# Packages of the root module without the race detector: examples, tools, and packages whose functions
# share nothing between goroutines. What examples do with the library is raced in its own tests.
unraced='./examples/... ./tools/... ./canal/envelope ./canal/event ./canal/internal/ddl ./internal/address
	./internal/codec ./internal/codec/carry ./internal/errtree
	./internal/logitem ./internal/noanswer ./internal/sqldb ./internal/wording
	./internal/test/spelling ./internal/test/linked/...'

# workspace MODULE: where to find a module's workspace. It holds the module and those that it
# replaces by a folder here, in the versions that its own go.mod asks for. In it, the library is
# compiled as it is by itself, which has been done already: as what a module requires, it would be
# compiled once more, as its version becomes part of it.
workspace() {
	if [[ $1 == . ]]; then echo off; else echo "$here/bin/test/${1//\//-}.work"; fi
}
workspaces() {
	local m d
	for m in "${raced[@]}" "${plain[@]}"; do
		if [[ $m == . ]]; then continue; fi
		{
			echo "go $(awk '$1 == "go" { print $2 }' "$m/go.mod")"
			for d in . $(awk 'NF > 2 && $(NF-1) == "=>" && $NF ~ /^\.\.?(\/|$)/ { print $NF }' "$m/go.mod"); do
				echo "use \"$(realpath "$m/$d")\""
			done
		} >"$(workspace "$m")"
	done
}
build() {
	local m race
	workspaces
	for m in "${raced[@]}" "${plain[@]}"; do
		race=-race
		if [[ " ${plain[*]} " == *" $m "* ]]; then race=; fi
		(cd "$m" && GOWORK=$(workspace "$m") go list -trimpath $race -test -deps -export ./... >/dev/null)
	done
	go list -trimpath -test -deps -export $unraced ${valkey:+$on_valkey} >/dev/null
	go build -trimpath -race -o bin/report ./tools/report
}
# The protocol also runs on Valkey, if it was fetched: package lease has it among its servers, and
# these packages run on it without the race detector. `make accept` runs all packages on it.
valkey=$(scripts/fetch.sh -have valkey-9.1) || valkey=
on_valkey='./internal/test/promises ./internal/conn ./internal/invalidation'
protocol='^Test(StaleSet|Hold|Invalidate|Expire|Group|Behaviour)'
# What has a slash comes last: go test decides by the first alternative that matches in part.
not_on_valkey='^Example|^TestWeight|^TestSnippets|^TestReadme|^TestKeysWithoutTypes|^TestTable|^TestFalsePositiveRate|^TestGuard|Millions$|/^(embedded|miniredis|sentinel|serverless)$'
# half matches one half of the tests of the promises, by the time that they take. Their package is
# run as two processes, or it would be the last to end, by itself.
half='^Test[A-H]'
# shares is how many processes run the small packages of the root module.
shares=9 unraced_shares=4
# queue lists what can run by itself, what takes longest first, so that none of it runs alone in
# the end.
queue() {
	printf '%s\n' promises-2 consistency consistency/sqloutbox promises-1 bloom lock canal/mysqlbinlog canal/pglogical
	if [ -n "$valkey" ]; then printf '%s\n' valkey-promises valkey-others; fi
	seq -f 'root-others-%.0f' $shares
	seq -f 'unraced-%.0f' $unraced_shares
	printf '%s\n' torture "${plain[@]}" budgets
	printf '%s\n' "${raced[@]}" | grep -vx -e '\.' -e canal/mysqlbinlog -e canal/pglogical -e torture
}
# others lists the small packages of the root module that run with the race detector.
others() {
	go list -race ./... | grep -vxE "$(go list .)/(consistency(/sqloutbox)?|bloom|lock|internal/test/promises)" |
		grep -vxFf <(go list $unraced)
}
# share N OF: every OFth line of the input, from the Nth.
share() { awk -v n="$1" -v of="$2" 'NR % of == n % of'; }
# job NAME: runs one of them.
job() {
	local race='go test -trimpath -race -count=1' bare='go test -trimpath -count=1' file=${1//\//-}
	local valkeys='PATH=$(scripts/fetch.sh valkey-9.1):$PATH'
	case $1 in
	promises-1) run "$file" . "$race" -run "$half" ./internal/test/promises ;;
	promises-2) run "$file" . "$race" -skip "$half" ./internal/test/promises ;;
	root-others-*) run "$file" . "$race" -p 1 $(others | share "${1##*-}" $shares) ;;
	unraced-*) run "$file" . "$bare" -p 1 $(go list $unraced | share "${1##*-}" $unraced_shares) ;;
	consistency | consistency/sqloutbox | bloom | lock) run "$file" . "$race" "./$1" ;;
	valkey-promises) run "$file" . "$valkeys $bare" -run "$protocol" -skip "$not_on_valkey" ./internal/test/promises ;;
	valkey-others) run "$file" . "$valkeys $bare" -skip "$not_on_valkey" -p 1 ${on_valkey#* } ;;
	# What the race detector distorts: bounds on allocations and on memory.
	budgets) run "$file" . "$bare" -run 'TestBudget|TestOverhead|Allocat' ./internal/test/allocs ./internal/memory ./internal/keys ;;
	bench | examples/lab/browser) run "$file" "$1" "$bare" ./... ;;
	*) run "$file" "$1" "$race" -p 1 ./... ;;
	esac
}
# Tests also wait, so more of them run at once than a small machine has cores: four, which keep two
# cores busy. With six they wait for each other, and what a server or a process does takes so long
# that tests take it for an outage.
tests() {
	export half shares unraced_shares unraced here on_valkey not_on_valkey protocol
	export -f run job others share workspace
	queue | xargs -P 4 -n 1 bash -c 'job "$1"' job
}

part "compile" build || exit 1
part "tests" tests

files=()
while read -r name; do files+=("bin/test/${name//\//-}.json"); done < <(queue)
echo
bin/report -sum "${files[@]}" >bin/test/summary
code=$?
echo "the parts:"
printf '%s\n' "${parts[@]}"
cat bin/test/summary
mysql=$(scripts/mysql.sh -version)
echo "MySQL: ${mysql:-not there, so that its tests were skipped: make mysql fetches it}"
if [ -z "$valkey" ]; then
	echo "Valkey: not there, so that the tests on it were skipped: scripts/fetch.sh valkey-9.1 fetches it"
	if [ "${CI:-}" = true ]; then code=1; fi
fi
exit $code
