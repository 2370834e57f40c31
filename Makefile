# `make demo` and `make test` do everything on a fresh machine with Python 3.11 or newer and make.

PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
VENV := .venv
INSTALLED := $(VENV)/.installed

.PHONY: demo test sim proof chaos bench bench-loss bench-heal bench-step bench-cpu bench-buckets bench-switch bench-changes lint types stubs

demo: $(INSTALLED)
	$(VENV)/bin/bellrock demo

# Several at a time. One after another, as for a debugger: .venv/bin/python -m pytest -n0 …
test: $(INSTALLED)
	$(VENV)/bin/python -m pytest

# Kills, stops, drains, joins and restarts at random for MINUTES, then a count; SEED=... repeats a schedule.
MINUTES ?= 60
SHARDS ?= 1
chaos: $(INSTALLED)
	PYTHONPATH=.:tests $(VENV)/bin/python -m chaos.soak --minutes $(MINUTES) --shards $(SHARDS) $(if $(SEED),--seed $(SEED))

# Side by side with what users would pick instead: six tables, within 20 minutes; QUICK=1 within 3 once the peers are
# installed. ONLY=steps,control takes some of them; WRITE=1 writes docs/benchmarks.md.
bench: $(INSTALLED)
	PYTHONPATH=.:tests $(VENV)/bin/python -m bench.run $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) $(if $(WRITE),--write)

bench-loss: $(INSTALLED)
	PYTHONPATH=.:tests $(VENV)/bin/python tests/bench/bench_loss.py

# QUICK=1: 256 MB and few repeats.
bench-heal: $(INSTALLED)
	PYTHONPATH=.:tests $(VENV)/bin/python tests/bench/bench_heal.py $(if $(QUICK),--quick)

bench-switch: $(INSTALLED)
	PYTHONPATH=.:tests $(VENV)/bin/python tests/bench/bench_switch.py

bench-changes: $(INSTALLED)
	PYTHONPATH=.:tests $(VENV)/bin/python -m tests.bench.bench_communicator --changes

bench-buckets: $(INSTALLED)
	PYTHONPATH=.:tests $(VENV)/bin/python tests/bench/bench_buckets.py

bench-step: $(INSTALLED)
	PYTHONPATH=.:tests $(VENV)/bin/python tests/bench/bench_step.py

# CPU time and waits of a step, by process and thread, beside a plain job's. SIZE=1M or 25M.
bench-cpu: $(INSTALLED)
	PYTHONPATH=.:tests $(VENV)/bin/python -m bench.step_cpu $(if $(SIZE),--size $(SIZE))

# The protocol in a simulated world: COUNT seeds, from FIRST on. One that fails prints the command that replays it.
FIRST ?= 0
SIMULATION := PYTHONPATH=.:tests $(VENV)/bin/python -m
sim: COUNT ?= 500
sim: $(INSTALLED)
	$(SIMULATION) simulation.seeds --first $(FIRST) --count $(COUNT)

# All there is to attack the protocol with: many seeds, all small worlds, deliberate mistakes, thousands of groups.
proof: COUNT ?= 20000
proof: $(INSTALLED)
	$(SIMULATION) simulation.seeds --first $(FIRST) --count $(COUNT)
	$(SIMULATION) simulation.seeds --first $$((1000000 + $(FIRST))) --count $$(($(COUNT) / 4))
	$(SIMULATION) simulation.small --all
	$(SIMULATION) simulation.small --confluence
	$(SIMULATION) simulation.small --cover --all
	$(SIMULATION) simulation.small --merge --all
	$(SIMULATION) simulation.mutants
	$(SIMULATION) simulation.scale

lint: $(INSTALLED)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(INSTALLED)
	$(VENV)/bin/mypy

# Writes the checked-in protobuf stubs anew from proto/; tests/test_stubs.py proves that they are fresh.
PROTOS := $(sort $(wildcard proto/*/*.proto))
SERVICES := $(shell grep -l '^service ' $(PROTOS))
stubs: $(INSTALLED)
	$(VENV)/bin/python -m grpc_tools.protoc -Iproto --python_out=. --pyi_out=. $(PROTOS)
	$(VENV)/bin/python -m grpc_tools.protoc -Iproto --grpc_python_out=. $(SERVICES)

# The stamp is written last: an installation that broke off is done again, a whole one is not.
$(INSTALLED): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer found. Install one, or say PYTHON=/path/to/python3." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
