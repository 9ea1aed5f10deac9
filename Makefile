# Each target sets up what it needs; see scripts/setup.
PYTHON_ENV = OMP_NUM_THREADS=1 .venv/bin/python -W ignore
COVERAGE = OMP_NUM_THREADS=1 .venv/bin/coverage

.PHONY: setup demo test test-versions lint red-green simulate smoke bench picture \
	upstream wheel unit unit-long unit-rest readme check-readme

setup:
	@scripts/setup

# The fault on the unmodified engine, and its absence with the fix.
demo: setup
	@$(PYTHON_ENV) -m sglang_cpu_testbed.demo

# check-readme runs the demonstration and red-green, and compares what they print.
test: lint unit check-readme

lint: setup
	.venv/bin/pre-commit run --all-files --show-diff-on-failure

# In two halves at once, since a test of a process mostly waits for its start.
LONG = test/server test/simulation test/smoke
REST = test $(LONG:%=--ignore=%)
unit: setup
	$(COVERAGE) erase
	@$(MAKE) --no-print-directory -j2 -O unit-long unit-rest
	$(COVERAGE) combine -q
	$(COVERAGE) report

unit-long:
	$(COVERAGE) run -m pytest -q $(LONG)

unit-rest:
	$(COVERAGE) run -m pytest -q $(REST)

# The registered tests must fail without the fix and pass with it.
red-green: setup
	@$(PYTHON_ENV) test/red_green.py

# What the fix costs, by policy and workload: a table, and build/bench*. Fails where the
# virtual part is not the stored one; `-m benchmark --update` stores it.
bench: setup
	@$(PYTHON_ENV) -m benchmark

# The order of the loop's acts in a recorded run, for docs/design.md.
picture: setup
	@$(PYTHON_ENV) -m sglang_cpu_testbed.picture docs/loop.png

# A folder for a pull request: `make upstream SOURCE=<checkout> OUT=<folder>`; one that it
# made before is made anew. AUTHOR='Name <address>' is the patch's.
OUT = build/upstream
upstream: setup
	@$(PYTHON_ENV) -m upstream "$(SOURCE)" "$(OUT)" $(if $(AUTHOR),--author "$(AUTHOR)")

# Both files of a release in build/dist, tested as they are; TAG= must be the version's.
wheel: setup
	@$(PYTHON_ENV) scripts/build_wheel.py --tag "$(TAG)"

# Every release that has the plugin framework; wheels are fetched once into the cache.
test-versions: setup
	$(PYTHON_ENV) -m pytest -q test/versions --releases=all
	@$(PYTHON_ENV) scripts/readme.py versions

# Seeded histories of the real scheduler, half an hour for 10,000 on an idle core;
# `make simulate SEEDS=500` for a short one, `POLICY=publish` for another policy.
SEEDS = 10000
POLICY = flush
simulate: setup
	@$(PYTHON_ENV) -m sglang_cpu_testbed.simulation --policy $(POLICY) --seeds $(SEEDS) \
		--reference-every 10
	@$(PYTHON_ENV) scripts/simulation_table.py --record

# The real HTTP server with real clients: stock, with the fix, overlap disabled; and
# so many seconds of load. What holds is recorded for the README.
LOAD = 120
smoke: setup
	@$(PYTHON_ENV) -m sglang_cpu_testbed.smoke --load $(LOAD)
	@$(PYTHON_ENV) scripts/smoke_table.py --record

# The blocks of README.md and docs/ that commands write.
readme: setup
	@$(PYTHON_ENV) scripts/readme.py

check-readme: setup
	@$(PYTHON_ENV) scripts/readme.py --check
