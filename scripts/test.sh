#!/usr/bin/env bash
# Runs all tests of all modules of the repository. Everything runs to its end, whatever
# fails. The last lines say what has failed, and the command that runs just that test.
# No result is taken from Go's cache of test results. With -trimpath another clone finds in
# the build cache what this one has compiled: the tests of the root alone take a minute.
# Without DWARF (-w) they are linked faster.
set -uo pipefail
cd "$(dirname "$0")/.."
export GOWORK=off GOFLAGS="-trimpath -ldflags=-w"
rm -rf bin/test
mkdir -p bin/test
parts=()

# part NAME COMMAND...: runs a part, and notes how long it took.
part() {
	local name=$1 began=$SECONDS
	shift
	echo "== $name"
	"$@"
	local code=$?
	parts+=("$(printf '%5d s  %s' $((SECONDS - began)) "$name")")
	return $code
}

# run FILE MODULE COMMAND ARGUMENTS...: runs `COMMAND ARGUMENTS` in the folder of a module.
# What it says goes to bin/test/FILE.json. COMMAND is what a person types to repeat it.
run() {
	local file=$1 module=$2 command=$3
	shift 3
	(cd "$module" && bash -c "$command"' -json -vet=off -timeout 30m "$@"' run "$@" 2>&1) |
		bin/report -module "$module" -as "$command" -to "bin/test/$file.json"
}

plain() { run "${1//\//-}" "$1" 'go test -trimpath -count=1' ./...; }
race() { run "race-${1//\//-}" "$1" 'go test -trimpath -race -count=1' "${@:2}" ./...; }
lane() { for m in "$@"; do race "$m" -p 1; done; }

# The modules, by how they are tested. Two have no race detector, and share what is compiled
# without it: bench, whose product is figures, and the lab's browser, which looks at another
# process. The library's races are looked for where it is tested. canal/mysqlbinlog takes as
# long as the other small ones together.
plain=(bench examples/lab/browser)
first=(canal/mysqlbinlog)
second=()
while read -r m; do
	case $m in
	. | canal/mysqlbinlog) ;;
	*) if [[ " ${plain[*]} " != *" $m "* ]]; then second+=("$m"); fi ;;
	esac
done < <(git ls-files go.mod '*/go.mod' | xargs -n1 dirname | sort)

build() {
	for m in . "${first[@]}" "${second[@]}"; do
		(cd "$m" && go list -trimpath -race -test -deps -export ./... >/dev/null)
	done
	for m in "${plain[@]}"; do
		(cd "$m" && go list -trimpath -test -deps -export ./... >/dev/null)
	done
	go build -trimpath -race -o bin/report ./internal/test/report
}
# What the race detector distorts: bounds on allocations and on memory.
unraced() { run unraced . 'go test -trimpath -count=1' -run 'TestBudget|TestOverhead|Allocat' ./internal/test/allocs ./internal/memory ./internal/keys; }
# half matches one half of the tests of the root package, by the time that they take. The package
# is run as two processes, or it would be the last to end, by itself.
half='^(Test[A-H]|Example)'
# root FILE ARGUMENTS...: packages of the root module.
root() { run "$1" . 'go test -trimpath -race -count=1' "${@:2}"; }
# Tests also wait, so more of them run at once than a small machine has cores: six, which keep two
# cores busy. Eight took about as long. The packages that take longest begin first, so that none of
# them runs alone in the end.
tests() {
	root root-1 -run "$half" . &
	root root-2 -skip "$half" . &
	root root-others -p 2 ./consistency ./bloom ./lock $(go list -race ./... | tail -n +2) &
	lane "${second[@]}" &
	lane "${first[@]}"
	unraced
	for m in "${plain[@]}"; do plain "$m"; done
	wait
}

part "compile" build || exit 1
part "tests" tests

files=(bin/test/root-{1,2,others}.json)
for m in "${first[@]}" "${second[@]}"; do files+=("bin/test/race-${m//\//-}.json"); done
for m in "${plain[@]}"; do files+=("bin/test/${m//\//-}.json"); done
echo
bin/report -sum "${files[@]}" bin/test/unraced.json >bin/test/summary
code=$?
echo "the parts:"
printf '%s\n' "${parts[@]}"
cat bin/test/summary
mysql=$(scripts/mysql.sh -version)
echo "MySQL: ${mysql:-not there, so that its tests were skipped: make mysql fetches it}"
exit $code
