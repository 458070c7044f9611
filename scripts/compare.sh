#!/usr/bin/env bash
# Sets the library beside its peers and the floors: the workloads of bench/, at full size, each by itself, in order of their sections. What each prints is kept in bench/tables, with what it was measured on, and
# docs/accept/benchmarks.md is put together from that. A bar that does not hold, or a test that fails, makes the script fail, but only when all have run.
# Arguments: the numbers of sections to run; the others stay as they were measured. Default: all.
set -euo pipefail
cd "$(dirname "$0")/.."
export GOWORK=off PATH="$PATH:/usr/sbin"
tables=bench/tables logs=bin/compare out=docs/accept/benchmarks.md
titles=([0]="The peers" [1]="Hits in memory" [2]="Hits in Redis" [3]="A cold key, one process" [4]="A cold key, four processes" [5]="Values that expire together" [6]="Invalidations that race with loads"
	[7]="How long other processes are stale" [8]="Rows that do not exist" [9]="Redis gone" [10]="One caller's trouble" [11]="Batches" [12]="Real traces" [13]="Memory" [14]="The parts, each next to its best peer"
	[15]="A Redis Cluster" [16]="A slow wire")

# workloads are the tests that publish tables, each with the number of its section, in order.
workloads() {
	awk 'function emit(i) { for (i = 1; i <= n; i++) print (section[i] != "" ? section[i] : zero[i] ? 0 : first != "" ? first : "-"), name[i]; n = 0; first = "" }
		FNR == 1 { emit() }
		/^func / { at = 0 }
		/^func Test[A-Z0-9].*testing\.T/ { at = ++n; name[n] = substr($2, 1, index($2, "(") - 1); section[n] = ""; zero[n] = 0 }
		at && /[&]Table[{]/ { zero[at] = 1 } # unless it says another
		match($0, /Section: *[0-9]+/) { s = substr($0, RSTART, RLENGTH); sub(/^[^0-9]*/, "", s); if (first == "") first = s; if (at && section[at] == "") section[at] = s }
		END { emit() }' bench/*_test.go | grep -v ' TestMain$' | sort -k1,1n -k2,2
}

cpu() { sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo 2>/dev/null | head -1 | grep . || uname -m; }
memory() { awk '/^MemTotal/ {printf "%.0f GB of memory", $2 / 1048576}' /proc/meminfo 2>/dev/null || echo "memory unknown"; }
servers() { echo "Redis $(redis-server --version | sed 's/.*v=\([^ ]*\).*/\1/'), MariaDB $(mariadbd --version | sed 's/.*Ver \([0-9.]*\).*/\1/')"; }
changed=
[ -z "$(git status --porcelain -- . ":!$tables" ":!$out")" ] || changed=" and changes to it"
stamp="$(date -u +%F), commit $(git rev-parse --short HEAD)$changed, $(go env GOVERSION), $(nproc) cores of $(cpu), $(memory), $(servers)"

# bars SECTION LOG: the lines of a test's log that say whether a bar holds, as rows of a table
bars() {
	awk -v section="$1" '/^=== (RUN|NAME|CONT)/ { test = $3 }
		match($0, /_test\.go:[0-9]+: bar: /) { s = substr($0, RSTART + RLENGTH); n = split(s, p, ": "); what = p[1]; for (i = 2; i < n - 1; i++) what = what ": " p[i]; split(p[n-1], f, ", at most ")
			print "| " section " | " test " | " what " | " f[1] " | " f[2] " | " p[n] " |" }' "$2"
}

failed=0
# run SECTION TEST
run() {
	local name began=$SECONDS dir code=0
	name=$(printf '%02d-%s' "$1" "$2")
	dir=$(mktemp -d)
	echo "== $1 $2"
	(cd bench && CACHEASIDE_ACCEPT=1 CI=true BENCH_TABLES="$dir" ../bin/bench.test -test.v -test.count=1 -test.timeout 20m -test.run "^$2\$") >"$logs/$name.log" 2>&1 || code=$?
	if ls "$dir"/*.md >/dev/null 2>&1; then
		{ ls -v "$dir"/*.md | xargs cat; echo "*$2; $stamp.*"; echo; } >"$tables/$name.md"
		cat "$tables/$name.md"
	fi
	bars "$1" "$logs/$name.log" >"$tables/$name.bars"
	if [ $code != 0 ]; then
		failed=1
		if ! grep -q ' FAILS |$' "$tables/$name.bars"; then # it is no bar that has failed
			echo "| $1 | $2 | what it asserts | – | – | FAILS |" >>"$tables/$name.bars"
			grep -vE '^ *(\|.*)?$' "$logs/$name.log" | tail -20
		fi
		echo "FAILS: $2; all that it said is in $logs/$name.log"
	fi
	[ -s "$tables/$name.bars" ] && cat "$tables/$name.bars" || rm -f "$tables/$name.bars"
	rm -rf "$dir"
	echo "-- $2 took $((SECONDS - began)) s"
}

# together prints docs/accept/benchmarks.md.
together() {
	local section= file n
	cat <<END
# Benchmarks: all tables

[docs/benchmarks.md](../benchmarks.md) has the tables that most readers want.

Measured by \`make compare\` ($([ $# = 0 ] && echo "all of it" || echo "the last time only $*"): $stamp). The line below each workload describes its machine and commit, because workloads can be measured one by one: \`scripts/compare.sh 4\`.

All peers do the same work in the same run: the same keys, rows, codec (\`encoding/json\`, except where [the peers](#the-peers) say another) and load function. Each has the best settings that its documentation recommends: see [the peers](#the-peers), and the file of each in
[bench/](../../bench). For comparisons of times, the peers take turns in many runs, in a changing order. A figure is the median of the runs; the middle half of the runs lies between the two figures next to it. A ratio is the median of the
ratios of all runs, because the speed of a machine changes between runs. Programs, Redis and MariaDB are all on one machine, without a network, except in [a slow wire](#16-a-slow-wire): over a network, round trips cost more. A floor is the
simplest code that does the same work, without any protection. Failures are shown as failures.

The bars are limits for the figures that the documentation claims. They are at [the end](#bars), with the measured figures.

END
	for file in "$tables"/*.md; do
		n=$((10#$(basename "$file" | cut -d- -f1)))
		if [ "$n" != "$section" ]; then
			section=$n
			printf '## %s\n\n' "$([ "$n" = 0 ] || echo "$n. ")${titles[$n]:-Workload $n}"
		fi
		cat "$file"
	done
	printf '## Bars\n\n| section | test | what | measured | at most | |\n|---|---|---|---|---|---|\n'
	cat "$tables"/*.bars 2>/dev/null || echo "| – | none | | | | |"
}

mkdir -p "$tables" "$logs" bin
scripts/fetch.sh valkey-9.1 >/dev/null || echo "the tests on Valkey will fail" >&2
(cd bench && go test -c -tags accept -o ../bin/bench.test .)
[ $# -gt 0 ] || rm -f "$tables"/*
for section in "$@"; do rm -f "$tables/$(printf '%02d' "$section")"-*; done
while read -r section test; do
	if [ "$section" = - ]; then continue; fi # it publishes no table
	if [ $# -eq 0 ] || [[ " $* " == *" $section "* ]]; then run "$section" "$test" </dev/null; fi
done < <(workloads)
together "$@" >"$out"
echo "all is in $out; it took $SECONDS s"
grep -h ' FAILS |$' "$tables"/*.bars 2>/dev/null || true # also of sections that were not run now
exit $failed
