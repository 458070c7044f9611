#!/usr/bin/env bash
# The long runs whose figures are reported. The logs are committed. Arguments: which of read-path, channel, trouble, speed, redis-hits, locks, filters, attack, write-costs, writes, kills, orm, outage, postgres, binlog, pglogical, postgres-versions, redis-versions, bounds, meter, metrics, groups, fleet, relays, price, hit-rates, peers, other-go to run; default: all.
# DATABASES=postgres runs the sections that compare databases on one of them, and puts its name into the name of the log.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p docs/accept bin
CI=true scripts/mysql.sh || echo "the tests on MySQL will fail" >&2
trouble='^(TestEarlyRefreshProbability|TestHotKeyNeverExpires|TestExpiryStorm|TestFlushUnderLoad|TestRedisKilledUnderLoad|TestRedisHungUnderLoad|TestDatabaseFails|TestSlowDatabase)$'
go test -c -tags accept -o bin/accept.test ./internal/test/promises
# run ARGUMENTS: tests at full size, and of what they say the figures and the verdicts
run() { (cd internal/test/promises && CACHEASIDE_ACCEPT=1 CI=true ../../../bin/accept.test -test.v -test.count=1 -test.timeout 30m "$@") | grep -E '^ +[a-z_]+_test\.go:|^(---|===) (PASS|FAIL|SKIP)|^--- |^(PASS|FAIL)' | grep -v '^=== '; }
# package PACKAGE TESTS: tests at full size of one of the packages
package() {
	(cd "$1" && go test -c -tags accept -o "$OLDPWD/bin/package.test" . && CACHEASIDE_ACCEPT=1 CI=true "$OLDPWD/bin/package.test" -test.v -test.count=1 -test.timeout 60m -test.run "$2") |
		grep -E '^ +[a-z0-9_]+\.go:|^ *--- (PASS|FAIL|SKIP)|^(PASS|FAIL)' | grep -v 'standard error:$' || failed=1
}
# on_each PACKAGE TESTS [sqlite]: the same on each kind of database, one after the other
on_each() {
	for database in ${DATABASES:-mariadb mysql postgres} "${@:3}"; do
		echo "-- $database"
		package "$1" "$2/^$database"
	done
}
read_path() {
	echo "== tests, at full size, without the race detector"
	run -test.skip "$trouble|^TestMissingKeysAttack$|^TestRedisHitGoroutines$|^TestCostOfGroups$|^TestHistoryOfGroups"
	echo
	echo "== the time that 20 breakdowns took, ten times over"
	for _ in $(seq 10); do (cd internal/test/promises && CACHEASIDE_ACCEPT=1 ../../../bin/accept.test -test.v -test.count=1 -test.run '^TestColdKeyInFleetIsLoadedOnce$') | grep -o '20 runs.*'; done
	echo
	echo "== the decoders of entries and values and the encoding of keys: 10 million inputs, and fuzzed with an eye on coverage for half a minute each"
	CACHEASIDE_ACCEPT=1 go test -tags accept -v -count=1 -timeout 30m -run Millions ./internal/lease ./internal/keys ./internal/codec | grep -v '^=== '
	make -s fuzz FUZZTIME=30s | grep -v 'gathering baseline' | awk '/elapsed/ {last = $0; next} {if (last) print last; last = ""; print}'
}
channel() {
	echo "== 8 processes, 10,000 keys in memory, 200 writes a second, a minute"
	(cd torture && SPREAD_TIME=60s GOWORK=off go test -tags accept -count=1 -v -run TestSpread .) | grep -v '^=== '
}
trouble() {
	echo "== storms of expiry, a Redis that is emptied, killed or hangs, a database that fails or is slow: at full size, without the race detector"
	run -test.run "$trouble"
}
speed() {
	echo "== times beside the floors, median of 8 interleaved runs"
	make -s bench | grep -A 20 '^benchmark'
	echo
	echo "== the overhead of an item in memory"
	go test -tags accept -v -count=1 -run TestOverhead ./internal/memory | grep _test.go
}
redis_hits() {
	echo "== hits in Redis by the number of goroutines, beside reads by hand and the AutoPipeline of go-redis: medians of 9 interleaved runs"
	run -test.run '^TestRedisHitGoroutines$'
}
locks() {
	echo "== what a lock costs: alone, and when it is fought for"
	for _ in 1 2 3; do package lock '^TestCostOf'; done
	echo
	echo "== exclusion, tokens and margins under faults: 5 histories of 20 s for each service"
	package lock 'History$'
	package lock/redlock 'History$'
	package lock/mysqllock 'History(OfKinds)?$'
	package lock/pglock 'History(OfKinds)?$'
	package lock/zklock 'History$'
	echo
	echo "== the suites on real servers: a holder is told before the next has the lock"
	package lock '^(TestRedis|TestSentinel|TestCluster)$'
	package lock/redlock '^TestRedlock$'
	package lock/mysqllock '^TestSuite$'
	package lock/pglock '^TestSuite$'
	package lock/zklock '^TestSuite$'
	echo
	echo "== nothing is left behind; nodes that hang; tokens; the paused holder; wake-ups"
	package lock '^(TestCancelledAcquireLeavesNothing|TestDelayedRequestIsRefused|TestLostReplyIsAdopted|TestTokensGrow.*|TestPausedHolder|TestReleaseWakesWaiters|TestLostWakeUpsDelayWaiters)$'
	package lock/redlock '^(TestRedlockCancelledAcquire|TestRedlockNodeHangs|TestRedlockThreeDown|TestRedlockTokensGrow)$'
	echo
	echo "== the sale: 20 runs of each lock under its fault, and of one segment and ten"
	package examples/flashsale '.'
	echo
	echo "== the four failures of the quickstart, without and with the library"
	package examples/quickstart '^TestFailures$'
	[ -z "${failed:-}" ]
}
filters() {
	echo "== no key is hidden: 10 million checks on one Redis, and on a cluster, while everything is emptied, stopped and killed"
	package bloom '^TestNothingIsHidden$'
	echo
	echo "== false positives at capacity, 10^8 probes each; the sizes"
	package bloom '^TestFalsePositiveRate$'
	package bloom/internal/bitmap '^TestSizing$'
	echo
	echo "== lookups in memory beside bits-and-blooms, the best of blocks that take turns, three times"
	for _ in 1 2 3; do package bloom '^TestLookup'; done
	echo
	echo "== a replica behind a bad network"
	package bloom '^TestReplicaBehindABadNetwork$'
	echo
	echo "== a million keys added to Redis"
	package bloom '^TestMillionAdds$'
	echo
	echo "== rebuilds that are watched, cut off and resumed, on each kind of server"
	package bloom '^(TestEachStepOfARebuild|TestRebuildEndsAnywhere|TestSegmentsAreMadeOnce|TestPausedMakerLeavesNothing|TestManyAsked|TestInterruptedRebuildIsBegunAnew|TestRebuild|TestFewer.*|TestLostIsNotFewer)$'
	echo
	echo "== a rebuild of 5 million keys from MariaDB under load; a filter of 2^33 bits"
	package bloom '^(TestRebuildUnderLoad|TestHugeFilter)$'
	[ -z "${failed:-}" ]
}
attack() {
	echo "== an attack by a million keys that do not exist: without a filter, and with one"
	run -test.run '^TestMissingKeysAttack$'
}
write_costs() {
	echo "== what a write costs at each level beside a bare transaction, sync_binlog 0 and 1, or synchronous_commit off and on; 2,000 writes a second; what a row of the outbox costs"
	on_each consistency '^(TestCostOfAWrite|TestOutboxStaysSmall|TestOutboxCost)$'
	[ -z "${failed:-}" ]
}
writes() {
	echo "== one, two and four claimers, then relays, on one outbox, and one of them killed; a deep queue"
	on_each consistency '^TestRelays$'
	on_each consistency/sqloutbox '^(TestClaimersShare|TestDeepQueue|TestQueueContract)$' sqlite
	echo
	echo "== histories of 8 processes, 20 s, 5 seeds: Strict linearizable, Outbox by promise 2; and of holds alone"
	on_each consistency '^TestHistory$'
	run -test.run '^TestStrictHistoryIsLinearizable$' || failed=1
	[ -z "${failed:-}" ]
}
kills() {
	echo "== processes that write killed anywhere, 500 times at each level, and relays and Redis with them: what is stale for ever"
	on_each consistency '^TestNothingIsForgotten$'
	[ -z "${failed:-}" ]
}
orm() {
	echo "== processes that write through GORM killed at any moment, 500 times on each database: what is stale"
	on_each consistency/gormwrites '^TestWritersAreKilled$'
	echo "== the same through ent"
	on_each consistency/entwrites '^TestWritersAreKilled$'
	echo "== what a write of GORM costs: bare, by the plugin, and in Writer.Update"
	on_each consistency/gormwrites '^TestCostOfAWrite$'
	echo "== what a write of ent costs: bare, by the driver, and in Writer.Update"
	on_each consistency/entwrites '^TestCostOfAWrite$'
	[ -z "${failed:-}" ]
}
outage() {
	echo "== Redis killed, and hung, for 5 minutes of 200 writes a second"
	on_each consistency '^TestOutage$'
	[ -z "${failed:-}" ]
}
postgres() {
	echo "== PostgreSQL: writes next to a transaction that is open for 10 minutes; 2,000 writes a second that notify relays"
	package consistency/sqloutbox '^(TestPostgresBloat|TestNotifyCost)$'
	[ -z "${failed:-}" ]
}
binlog() {
	echo "== how long after the commit another process serves the new value; a backlog beside bare replication; a giant transaction; rows of others and a whitelist"
	package canal/mysqlbinlog '^(TestLatency|TestBacklog|TestGiantTransaction|TestOthersRowsAreNotHidden)$'
	echo
	echo "== a process that follows the binary log of MariaDB, and of MySQL, killed 200 times, while rows and tables change, and servers are killed, hang, and lose their logs: what is stale"
	package canal/mysqlbinlog '^TestConsumerIsKilled$'
	echo
	echo "== of two that have one lock the other takes over; a server that hangs; two with the same number; how logs are written; what sessions set"
	package canal/mysqlbinlog '^(TestFailover|TestServerThatHangs|TestTwoWithTheSameServerID|TestHowTheLogIsWritten|TestCharacterSets|TestSessionsOfAllSettings|TestOldTimes)$'
	[ -z "${failed:-}" ]
}
pglogical() {
	echo "== PostgreSQL: how long after the commit another process serves the new value"
	for _ in 1 2 3; do package canal/pglogical '^TestLatency$'; done
	echo
	echo "== PostgreSQL: a backlog next to bare pglogrepl; a giant transaction; a consumer that accepts nothing for a while"
	package canal/pglogical '^(TestBacklog|TestGiantTransaction|TestBusyConsumer|TestCatalogOfManyPartitions)$'
	echo
	echo "== PostgreSQL: a process that follows it killed 200 times, while the server and Redis are killed, and tables and the publication change: what is stale"
	package canal/pglogical '^TestConsumerIsKilled$'
	echo
	echo "== PostgreSQL: 500 processes killed, most of them between a commit and its invalidation, with an outbox in the log: what is stale"
	package canal/pglogical '^TestOutboxWriterIsKilled$'
	echo
	echo "== PostgreSQL: what an outbox in the log costs, next to one in a table"
	package canal/pglogical '^TestOutboxCost$'
	[ -z "${failed:-}" ]
}
# on NAME FOLDER PACKAGES: runs the tests on the server NAME of fetch.sh, or on the installed one if NAME is ""
on() {
	local bin=
	[ -z "$1" ] || bin=$(scripts/fetch.sh "$1") || { failed=1 && return; }
	(cd "$2" && PATH=${bin:+$bin:}$PATH CI=true go test -count=1 -timeout 60m $3) | grep -E '^(ok|FAIL|panic)|^ *--- FAIL|^ +[a-z0-9_]+\.go:' || failed=1
}
# fetched NAME: the version that the server NAME of fetch.sh prints; nothing if NAME is ""
fetched() {
	local bin program
	[ -n "$1" ] && bin=$(scripts/fetch.sh "$1") || return 0
	for program in postgres redis-server; do [ ! -x "$bin/$program" ] || "$bin/$program" --version; done
}
postgres_versions() {
	for name in "" postgresql-17 postgresql-18; do
		echo "== the tests on PostgreSQL: ${name:-the installed one}"
		fetched "$name"
		on "$name" . "./consistency ./consistency/sqloutbox ./consistency/pgnotify ./consistency/pgxtx ./lock ./lock/pglock ./bloom ./canal ./canal/parking ./cmd/cacheaside ./examples/repository"
		on "$name" canal/pglogical .
		on "$name" examples/service .
		on "$name" examples/binlog "-run Postgres ."
		on "$name" examples/dblayers "-run Pgx ."
		echo
	done
	for name in postgresql-17 postgresql-18; do
		echo "== standbys that are promoted under load, at full size: $name"
		fetched "$name"
		(PATH=$(scripts/fetch.sh "$name"):$PATH && package canal/pglogical '^TestFailovers$' && [ -z "${failed:-}" ]) || failed=1
	done
	[ -z "${failed:-}" ]
}
redis_versions() {
	for name in valkey-8.1 valkey-9.1 redis-8.6; do
		fetched "$name" # some tests need two of them
	done
	for name in valkey-8.1 valkey-9.1 redis-8.6; do
		echo "== the tests on $name"
		on "$name" . ". ./lock/... ./bloom $(go list ./internal/... | grep -v -e /docs$ | xargs)"
		echo
	done
	[ -z "${failed:-}" ]
}
bounds() {
	echo "== what must end in time, or be heard at once: bounds that only an idle machine keeps"
	package internal/invalidation '^(TestCloseEndsAll|TestDeleteEndsInTimeWhenRedisHangs|TestAMessageReachesOthersAtOnce|TestAllThatRedisHasIsLost)$'
	package internal/lease '^TestCommandsEndInTime'
	package internal/conn '^TestSendEndsInTime$'
	package internal/memory '^TestWeigh'
	package internal/codec '^TestBombs$'
	package cmd/cacheaside '^(TestRedisIsDown|TestMySQLIsDown|TestLockBreak|TestTailForPeople)$'
	package examples/lab '^TestStart$'
	[ -z "${failed:-}" ]
}
metrics() {
	echo "== a Prometheus that scrapes a process under load has data for every panel of the dashboard"
	package otelcacheaside '^(TestDashboard|TestScrapeUnderLoad)$'
	echo
	echo "== what a hit in memory takes without an Observer, and with one"
	go test -run '^$' -bench 'BenchmarkObserved' -benchtime 300ms -count 8 ./internal/test/promises | grep '^Benchmark'
	[ -z "${failed:-}" ]
}
meter() {
	echo "== invalidations lost on purpose, 1 %, 0.1 % and none, and of the memory tier alone: what the meter tells; what it costs at 1,000 writes a second"
	package meter '^(TestLossRateIsMeasured|TestCostOfAMeter)$'
	echo
	echo "== a shadow beside writers that forget to invalidate, and beside such that do not"
	run -test.run '^TestShadow' || failed=1
	[ -z "${failed:-}" ]
}
groups() {
	echo "== what two groups add to a hit, and an invalidation of a group of 100,000 entries next to one of a key: medians of 61 interleaved runs"
	run -test.run '^TestCostOfGroups$' || failed=1
	echo
	echo "== histories of 8 processes, 20 s, 5 seeds, that invalidate groups: fresh reads are linearizable, without faults and with them"
	run -test.run '^TestHistoryOfGroups' || failed=1
	echo
	echo "== the first hit of a new process with ten loaders of 65,536 invalidated groups (on the cluster in each of 16 ranges), next to none: medians of 41 starts each"
	run -test.run '^TestStartWithManyGroups$' || failed=1
	[ -z "${failed:-}" ]
}
fleet() {
	echo "== what 1 to 1,000 listening processes cost one Redis and a cluster: announcements, polls, a cold key, reads"
	package bench/fleet '^TestFleet$'
	[ -z "${failed:-}" ]
}
relays() {
	echo "== what 1 to 1,000 idle relays of an outbox ask of the database and of Redis, and how long an item waits"
	package consistency/sqloutbox '^TestIdleRelays$'
	[ -z "${failed:-}" ]
}
price() {
	echo "== what a program links that only reads, how large it is, and how long it is compiled, beside go-redis alone and sturdyc"
	scripts/price.sh
}
hit_rates() {
	(cd bench && HITRATE=all GOWORK=off go test -count=1 -run '^TestHitRate$' -v -timeout 60m .) | grep -v '^=== RUN'
}
peers() {
	echo "== each library that is compared does what its adapter says of it"
	package bench '^TestPeers'
	echo
	echo "== all that make compare measures runs, at its smallest size"
	(cd bench && CI=true GOWORK=off go test -tags accept -count=1 ./...) || failed=1
	[ -z "${failed:-}" ]
}
other_go() {
	echo "== all tests of all modules with the other supported release of Go"
	CI=true scripts/other-go.sh -all
}
# with SECTION: on what it was measured, and the section
with() {
	echo "$(date -u +%F), $(go version), $(nproc) cores, $(redis-server --version | cut -d' ' -f1-3), commit $(git rev-parse --short HEAD)"
	case $1 in write-costs | writes | kills | orm | outage | postgres | binlog | pglogical | locks | relays | postgres-versions) # these run on all three
		postgres=$(type -P postgres || ls /usr/lib/postgresql/*/bin/postgres | sort -V | tail -1)
		echo "$(mariadbd --version 2>/dev/null || /usr/sbin/mariadbd --version), $(scripts/mysql.sh -version), $($postgres --version)" ;;
	esac
	echo
	"${1//-/_}"
}
for section in ${*:-read-path channel trouble speed redis-hits locks filters attack write-costs writes kills orm outage postgres binlog pglogical postgres-versions redis-versions bounds meter metrics groups fleet relays price hit-rates peers other-go}; do
	with "$section" 2>&1 | tee "docs/accept/$section${DATABASES:+-$DATABASES}.log"
done
