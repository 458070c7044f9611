# Every target that has a comment after ## is listed by `make help`.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# The modules of the repository, each tested and built by itself.
MODULES := $(shell git ls-files '*go.mod' 'go.mod' | sort -u | xargs -n1 dirname)
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.14.0
SERVERS := redis-server redis-sentinel mariadb-server postgresql pgbouncer zookeeper openjdk-17-jre-headless nats-server chromium
export GOWORK := off

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

servers: ## install the servers that the tests start (Debian, Ubuntu)
	@scripts/servers.sh $(SERVERS)

mysql: ## fetch a MySQL server for the tests, into the user's cache folder: nothing is installed
	@scripts/mysql.sh

test: servers ## all tests of all modules, with the race detector where goroutines share something
	@scripts/test.sh

quick: ## format, lengths, guards; vet and the tests of the packages that differ from BASE (HEAD)
	@scripts/quick.sh $(BASE)

check: lint test mutants ## what must hold before a change is committed

lint: format bin/golangci-lint ## formatting, the list of guards, lengths, the order of the root's files, workflows, golangci-lint with go vet
	GOFLAGS= go run $(ACTIONLINT)
	go run ./tools/mutant -check
	scripts/house.sh
	go run ./tools/layers
	@set -e; for m in $(MODULES); do \
		race=-race; case $$m in bench | examples/lab/browser) race=; ;; esac; \
		(cd $$m && GOFLAGS="$$GOFLAGS -trimpath $$race" $(CURDIR)/bin/golangci-lint run --build-tags accept ./...); done

vet: ## go vet in all modules, with the tests of make accept
	@set -e; for m in $(MODULES); do \
		race=-race; case $$m in bench | examples/lab/browser) race= ;; esac; \
		(cd $$m && go vet -trimpath $$race -tags accept ./...); done

bin/golangci-lint: Makefile
	GOFLAGS= GOBIN=$(CURDIR)/bin go install -ldflags=-w $(GOLANGCI)
	@touch $@

format: ## whether gofmt would change a file
	@out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "gofmt would change:"; echo "$$out"; exit 1; fi

race: ## the tests that look for races, ten times over
	go test -race -count=10 ./internal/flight ./internal/memory ./internal/lease
	go test -race -count=10 -run 'Stale|Cancel|Close|Panic|Leaves|History' ./internal/test/promises

BENCHRUNS ?= 8
bench: ## what a hit costs beside raw ristretto and raw go-redis: ratios, the median of BENCHRUNS (8) interleaved runs
	@mkdir -p bin; for i in $$(seq $(BENCHRUNS)); do go test -run '^$$' -bench . -benchtime 300ms ./internal/test/promises || exit 1; done | tee bin/bench.txt | grep -v -e '^ok' -e '^PASS' -e '^goos' -e '^goarch' -e '^pkg'
	@go run ./tools/ratios < bin/bench.txt

FUZZTIME ?= 30s
fuzz: ## fuzz each decoder for FUZZTIME (30s)
	@set -e; grep -ro 'func Fuzz[A-Za-z]*' --include='*_test.go' internal bloom canal consistency cmd msgpack | sed 's|/[^/]*:func | |' | sort | while read -r p f; do \
		echo "$$p $$f"; (cd $$p && go test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) . </dev/null); done

TORTURE_TIME ?= 10m
TORTURE_SEEDS ?= 1,2,3,4,5
torture: servers ## processes on real servers, everything broken by turns, for TORTURE_TIME (10m) with each of TORTURE_SEEDS and on each topology
	cd torture && TORTURE_TIME=$(TORTURE_TIME) TORTURE_SEEDS=$(TORTURE_SEEDS) go test -count=1 -timeout 24h -v -run 'TestTorture$$' .

mutants: ## take each guard out (or only NAME), and show that the test named for it fails
	@go run ./tools/mutant $(NAME)

mutate: ## random changes of the lines that differ from BASE (HEAD); reports, refuses nothing
	@scripts/mutate.sh $(BASE)

accept: servers ## the long runs whose figures are reported; the log is kept in docs/accept
	@scripts/accept.sh

compare: servers ## the library beside its peers, on the same work in the same run; the tables are kept in docs/accept/benchmarks.md
	@scripts/compare.sh

.PHONY: help servers mysql test quick check lint format vet race bench compare fuzz torture mutants mutate accept
