# Every target that has a comment after ## is listed by `make help`.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# The modules of the repository, each tested and built by itself.
MODULES := $(shell git ls-files '*go.mod' 'go.mod' | sort -u | xargs -n1 dirname)
GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.14.0
SERVERS := redis-server redis-sentinel mariadb-server zookeeper openjdk-17-jre-headless nats-server chromium
export GOWORK := off

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

servers: ## install the servers that the tests start (Debian, Ubuntu)
	@scripts/servers.sh $(SERVERS)

# bench has no race detector: its product is figures, the library's own races are looked for where it is tested, and all that the peers need would have to be compiled once more for it.
test: servers ## all tests of all modules with the race detector; then what timing and allocations need without it, and over TLS
	@scripts/test.sh $(filter-out bench,$(MODULES))
	@echo "== without the race detector: bounds on time and allocations"
	go test -count=1 -run '$(TIMED)' . ./internal/local ./internal/keys
	@echo "== over TLS, as a user of Redis who may use only what is documented; and at the same time bench, at a small size, where nothing is timed"
	@mkdir -p bin; (cd bench && go vet . && go test -vet=off -timeout 10m .) >bin/bench-test.log 2>&1 & bench=$$!; \
		CACHEASIDE_TEST_REDIS=tls go test -count=1 -skip '$(PLAIN)' .; tls=$$?; \
		wait $$bench; code=$$?; cat bin/bench-test.log; exit $$((tls || code))

# What needs no Redis of its own kind: it has a proxy, child processes, a bubble or a server of its own, and would only do the same again.
PLAIN := ^(TestExpiryStorm|TestFlushUnderLoad|TestRedis(Killed|Hung)UnderLoad|TestDatabaseFails|TestSlowDatabase|TestBreakdown.*|TestEarlyRefresh.*|TestHotKeyNeverExpires|TestHardEnd|TestOverlappingBatches|TestClusterNodeHangs|TestSlotMoves|TestServerRefuses|TestReplicaLagHistory|TestRedisOutOfReach|TestRenewalIsTriedAgain|TestCloseDuringHits|TestRedisHangs|TestNobodyReloadsWhatIsNotRead|TestStaleWhileTheBreakerIsOpen|TestLives|TestHistory.*|TestStrictHistoryIsLinearizable|TestHoldsWhileASlotMoves|TestHoldThatComesLate|TestSuspendedProcess|TestRefreshesAreAskedFor|TestLoadLockWithoutRedis|TestAttack|Example.*)$$
# What the race detector distorts.
TIMED := TestBreakdown|TestMemoryHit|TestRedisHangs|TestBudget|TestOverhead|Allocat

check: lint test mutants ## what must hold before a change is committed

lint: ## formatting, vet, golangci-lint
	@out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "gofmt would change:"; echo "$$out"; exit 1; fi
	go vet ./...
	set -e; for m in $(MODULES); do (cd $$m && go run $(GOLANGCI) run ./...); done

race: ## the tests that look for races, ten times over
	go test -race -count=10 ./internal/flight ./internal/local ./internal/lease
	go test -race -count=10 -run 'Stale|Cancel|Close|Panic|Leaves|History' .

BENCHRUNS ?= 8
bench: ## what a hit costs beside raw ristretto and raw go-redis: ratios, the median of BENCHRUNS (8) interleaved runs
	@mkdir -p bin; for i in $$(seq $(BENCHRUNS)); do go test -run '^$$' -bench . -benchtime 300ms . || exit 1; done | tee bin/bench.txt | grep -v -e '^ok' -e '^PASS' -e '^goos' -e '^goarch' -e '^pkg'
	@go run ./internal/ratios < bin/bench.txt

FUZZTIME ?= 30s
fuzz: ## fuzz each decoder for FUZZTIME (30s)
	@set -e; grep -ro 'func Fuzz[A-Za-z]*' --include='*_test.go' internal bloom canal consistency cmd | sed 's|/[^/]*:func | |' | sort | while read -r p f; do \
		echo "$$p $$f"; (cd $$p && go test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) . </dev/null); done

TORTURE_TIME ?= 10m
TORTURE_SEEDS ?= 1,2,3,4,5
torture: servers ## processes on real servers, everything broken by turns, for TORTURE_TIME (10m) with each of TORTURE_SEEDS and on each topology
	cd torture && TORTURE_TIME=$(TORTURE_TIME) TORTURE_SEEDS=$(TORTURE_SEEDS) go test -count=1 -timeout 24h -v -run 'TestTorture$$' .

mutants: ## take each guard out, and show that the test named for it fails
	@scripts/mutants.sh

accept: servers ## the long runs whose figures are reported; the log is kept in docs/accept
	@scripts/accept.sh

compare: servers ## the library beside its peers, on the same work in the same run; the tables are kept in docs/benchmarks.md
	@scripts/compare.sh

.PHONY: help servers test check lint race bench compare fuzz torture mutants accept
