# Everything a contributor runs. The first target that needs it builds .venv from
# requirements/dev.lock; after that a target starts at once, until the lock or pyproject.toml changes.
# To choose the interpreter: make clean, then make PYTHON=python3.12 test

PY    := .venv/bin/python
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help run test torture check bench docs surface lock clean
# A recipe that fails leaves no half-made target behind.
.DELETE_ON_ERROR:

help: ## Show this list
	@echo "runnel: durable, real-time pub/sub for Python, without a cluster"
	@echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'
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

run: $(READY) ## A short tour of the bus
	@$(PY) -m runnel tour
	@echo
	@echo "Next: make test, or open README.md for a first program"

test: $(READY) ## All tests, with coverage
	@$(PY) -m coverage erase
	$(PY) -m coverage run -m pytest
	@$(PY) -m coverage combine -q
	$(PY) -m coverage report
	@echo
	@echo "Next: make check, then make bench for the figures"

torture: $(READY) ## Crash the journal 100,000 times, kill the broker 1,000 times (about half an hour)
	$(PY) -m tests.crash.torture --points $(or $(POINTS),100000)
	$(PY) -m tests.crash.killing --kills $(or $(KILLS),1000)
	@echo
	@echo "Next: replay what it found with --seed, as printed"

check: $(READY) ## Format, lint, types, layers, house rules
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	.venv/bin/lint-imports --no-logo
	$(PY) -m pytest -q tests/house
	@echo
	@echo "Next: make test"

bench: $(READY) ## The figures, measured on this machine
	$(PY) -m benchmarks
	@echo
	@echo "Next: compare with the figures in README.md"

docs: $(READY) ## Build the documentation into site/
	@# The theme advertises its successor on every build.
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@echo
	@echo "Next: $(PY) -m http.server --directory site, then open http://localhost:8000"

surface: $(READY) ## Accept the public surface as it is now
	@$(PY) -m tests.house.surface --update
	@echo
	@echo "Next: git diff tests/house/surface.txt, and an entry in CHANGELOG.md"

lock: $(READY) ## Bring requirements/dev.lock up to pyproject.toml (UPGRADE=1: to the newest versions)
	@$(PY) -m uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --quiet $(if $(UPGRADE),--upgrade) \
		--generate-hashes --no-emit-index-url --no-emit-find-links \
		--custom-compile-command "make lock" --output-file requirements/dev.lock
	@echo "Next: make check test, which install what changed"

clean: ## Remove what the other targets made
	rm -rf .venv site dist .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "Next: make run"
