# Everything a contributor runs. The first target that needs it builds .venv from
# requirements/dev.lock; after that a target starts at once, until the lock or pyproject.toml changes.
# To choose the interpreter: make clean, then make PYTHON=python3.12 test

PY    := .venv/bin/python
READY := .venv/.ready
SPARK := .venv/.spark-ready
ARCHIVE := .venv/.spark-archive
PICTURES := docs/pictures/.made
SHOWN := $(wildcard src/runnel/console/* examples/joblogs/*.py examples/joblogs/pages/*)
SPARK42 := .venv-spark42/.ready

.DEFAULT_GOAL := help
.PHONY: help run demo test coverage nightly nightly-tests python-versions chromium spark-versions torture chaos fuzz check bench docs surface lock clean
# Without bytecode every process of a test compiles runnel again: a second of CPU each.
unexport PYTHONDONTWRITEBYTECODE
# A recipe that fails leaves no half-made target behind.
.DELETE_ON_ERROR:

help: ## Show this list
	@echo "runnel: durable, real-time pub/sub for Python, without a cluster"
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-21s %s\n", $$1, $$2 }'
	@echo
	@echo "Next: make run"

$(READY): requirements/dev.lock pyproject.toml tools/install.py
	@python=$$(PYTHON="$(PYTHON)" sh tools/find-python) || exit 1; \
	if ! $(PY) -c "" 2>/dev/null; then \
		echo "Making .venv with $$python"; \
		"$$python" -m venv --clear .venv; \
	fi
	@$(PY) tools/install.py
	@touch $@

# Spark is large, and only tests and its own examples need it.
$(SPARK): $(READY) requirements/spark.lock
	@$(PY) tools/install.py spark
	@touch $@

# From it every Java of a test starts faster.
$(ARCHIVE): $(SPARK) tools/spark_archive.py
	@$(PY) -m tools.spark_archive
	@touch $@

run: $(READY) ## A server on the folder data/, until Ctrl-C (ARGS="--port 0": options of `runnel serve`)
	@$(PY) -m runnel serve --data data $(ARGS)

# Spark is installed beside the server, which is up at once.
demo: $(READY) ## A server with traffic, archive and analytics on Spark, and a console whose plots move, until Ctrl-C
	@$(PY) -m tools.demo --prepare "$(MAKE) --no-print-directory $(SPARK)" $(ARGS)

js: $(READY) ## Copy the JavaScript client from src/runnel/console to clients/js
	@$(PY) -m tools.js_client

# Groups and order: tests/scheduling.py. What takes longer than its share of the budget is marked `nightly`.
PYTEST := -m pytest -n $(or $(JOBS),auto) --dist loadgroup --no-loadscope-reorder

test: $(READY) $(ARCHIVE) chromium ## All tests except the nightly ones, in minutes (BROWSER=0: without those that need Chromium)
	$(PY) $(PYTEST)
	@echo
	@echo "Next: make check, then make bench for the figures"

coverage: $(READY) $(ARCHIVE) chromium ## The same tests, with coverage
	@$(PY) -m coverage erase
	$(PY) -m coverage run $(PYTEST)
	@$(PY) -m coverage combine -q
	$(PY) -m coverage report
	@echo
	@echo "Next: tests for the lines that are missing"

nightly: ## What takes hours: all tests at full length, torture, chaos, fuzz, the oldest pyspark, each Python
	@# --keep-going: what fails does not spare the rest.
	$(MAKE) --keep-going nightly-tests torture chaos fuzz spark-versions python-versions

nightly-tests: $(READY) $(ARCHIVE) chromium
	$(PY) $(PYTEST) -m "nightly or not nightly" --hypothesis-profile=nightly

python-versions: $(READY) ## The tests of `make test` on Python 3.11, 3.12 and 3.13, as far as they are installed
	$(PY) tools/python_versions.py $(PYTEST)
	@echo
	@echo "Next: make test, which uses the Python of .venv"

# pyspark 4.2 comes first there; all else is that of .venv.
$(SPARK42): $(SPARK) requirements/spark42.lock
	@$(PY) -m venv --clear .venv-spark42
	@# Its own setuptools, where it has one, is too old to build with.
	@.venv-spark42/bin/python -m pip uninstall --quiet --yes setuptools 2>/dev/null || true
	@$(PY) -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
		> "$$(.venv-spark42/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/zz-others.pth"
	@.venv-spark42/bin/python tools/install.py spark42
	@touch $@

spark-versions: $(SPARK) $(SPARK42) ## The tests of Spark, nightly ones too, with the oldest pyspark that works (4.2)
	.venv-spark42/bin/python -c "import pyspark; print('pyspark', pyspark.__version__)"
	.venv-spark42/bin/python -m pytest -q tests/spark -m "nightly or not nightly"
	@echo
	@echo "Next: make test, which uses the newest"

# As root on Debian it is installed; elsewhere the command is named.
chromium: $(READY)
	@$(PY) tools/chromium.py

torture: $(READY) ## Crash the journal 100,000 times, kill the broker 1,000 times (about half an hour)
	$(PY) -m tests.crash.torture --points $(or $(POINTS),100000)
	$(PY) -m tests.crash.killing --kills $(or $(KILLS),1000)
	@echo
	@echo "Next: replay what it found with --seed, as printed"

chaos: $(READY) ## Kill a server behind a bad network, freeze 200 of 1,000 clients, let 5,000 come at once, and 10,000 browsers (minutes)
	$(PY) -m tests.chaos.storm --kills $(or $(KILLS),25) --seed $(or $(SEED),1) --storms $(or $(STORMS),2)
	$(PY) -m tests.chaos.frozen
	$(PY) -m tests.chaos.rush
	$(PY) -m tests.chaos.browsers --seed $(or $(SEED),1)
	@echo
	@echo "Next: try what it found again with SEED=, as printed"

fuzz: $(READY) ## Fuzz every decoder, FUZZ_SECONDS=60 each
	@# atheris has no wheels for some platforms, so that it has a lock of its own; without it bytes change at random.
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/fuzz.lock \
		|| echo "atheris cannot be installed here"
	$(PY) -m tests.fuzz --seconds $(or $(FUZZ_SECONDS),60)
	@echo
	@echo "Next: make test"

check: $(READY) $(SPARK) ## Format, lint, types, layers, project checks
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	.venv/bin/lint-imports --no-logo
	$(PY) -m pytest -q tests/project
	@echo
	@echo "Next: make test"

bench: $(READY) ## The figures, measured on this machine; the cost matrix is one of them (QUESTIONS="matrix --quick")
	$(PY) -m benchmarks $(QUESTIONS)
	@echo
	@echo "Next: python -m benchmarks --save keeps them, --publish writes docs/benchmarks.md"

# Chromium makes them of what they show; without it the docs are built without them.
$(PICTURES): $(READY) tools/pictures.py tests/browser/demo.py $(SHOWN)
	@$(PY) -m tools.pictures

docs: $(READY) $(PICTURES) ## Build the documentation into site/
	@# The theme advertises its successor on every build.
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@echo
	@echo "Next: $(PY) -m http.server --directory site, then open http://localhost:8000"

surface: $(READY) ## Accept the public surface as it is now
	@$(PY) -m tests.project.surface --update
	@echo
	@echo "Next: git diff tests/project/surface.txt, and an entry in CHANGELOG.md"

lock: $(READY) ## Bring requirements/*.lock up to pyproject.toml (UPGRADE=1: to the newest versions)
	@for group in dev spark spark42 fuzz; do \
		$(PY) -m uv pip compile $$(test $$group = dev && echo pyproject.toml || echo -c requirements/dev.lock) \
			--group $$group --universal \
			--python-version 3.11 --quiet $(if $(UPGRADE),--upgrade) \
			--generate-hashes --no-emit-index-url --no-emit-find-links \
			--custom-compile-command "make lock" --output-file requirements/$$group.lock || exit 1; \
	done
	@echo "Next: make check test, which install what changed"

clean: ## Remove what the other targets made
	rm -rf .venv .venv-spark42 .venv-py3* site dist docs/pictures .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "Next: make run"
