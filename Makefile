# `make demo`: the whole workflow on real data. `make test`: all checks. Both make their own .venv.
PYTHON ?= python3
BIN := .venv/bin
PACKAGES := closecall mining finetune eval

.PHONY: demo test test-slow lint clean

demo: .venv/demo.stamp
	$(BIN)/closecall demo

test: .venv/test.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile
	$(MAKE) lint

test-slow: .venv/test.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slow or not slow" --numprocesses auto --dist loadfile

lint: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/%.stamp: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable ".[$*]"
	touch $@

clean:
	rm -rf .venv closecall-demo build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
