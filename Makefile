# Launch Bound. `make demo` shows what it is; `make test` proves it. Both set up .venv themselves.

PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1

.PHONY: help demo labs lab notebooks jupyter book test slow bench gpu figures format clean

help:  ## What can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

demo: .venv/.core  ## Run the main job; ARGS="--help" tells the options
	$(BIN)/python -m mini_engine demo $(ARGS)

labs: .venv/.core  ## Where you stand in the labs, and the next step
	@$(BIN)/python -m labs

lab: .venv/.core  ## One lab: make lab N=5 cuts it (or keeps yours) and checks it
	@$(BIN)/python -m labs start $(N)
	@$(BIN)/python -m labs check $(N) || true  # red is no error of make

notebooks: .venv/.test  ## Run the notebooks again and keep their outputs; ARGS="03" runs one
	$(BIN)/python -m notebooks $(ARGS)

jupyter: .venv/.notebooks  ## Open the notebooks in JupyterLab; ARGS="--no-browser" prints the address only
	PYTHONPATH="$(CURDIR)" $(BIN)/python -m jupyterlab notebooks --MappingKernelManager.root_dir="$(CURDIR)" $(ARGS)

book: .venv/.test  ## Build the site into out/book; ARGS="--serve" shows it on localhost:8000
	$(BIN)/python -m course.site $(ARGS)

test: .venv/.test  ## Lint, types and the whole suite (under ten minutes on two cores)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

slow: .venv/.test  ## The property tests with 1,000 examples each, and every mutant of the labs
	HYPOTHESIS_PROFILE=slow $(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

bench: .venv/.core  ## Speed of the serving simulator: steps a second, growth, stride against loop
	$(BIN)/python -m tests.serving.speed $(ARGS)

gpu: .venv/.gpu  ## On a machine with an NVIDIA GPU: measure it, test on it; PYTHON=python3 names its Python
	$(BIN)/python -m mini_engine gpu $(ARGS)

figures: .venv/.core  ## Draw the pictures of the README and of the chapters again
	$(BIN)/python -m mini_engine demo
	cp out/timeline.png out/crossover.png course/figures/
	$(BIN)/python -m course.draw

format: .venv/.test  ## Let ruff write the layout
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove .venv, caches and out/
	rm -rf .venv out .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info

.venv/.core: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$$($(PYTHON) --version) is too old: Launch Bound needs Python 3.11 or newer, try make PYTHON=python3.12"; exit 2; }
	@$(PYTHON) make_venv.py core
	@touch $@

.venv/.gpu: .venv/.core
	@$(PYTHON) make_venv.py gpu
	@touch $@

.venv/.notebooks: .venv/.core
	@$(PYTHON) make_venv.py notebooks
	@touch $@

.venv/.test: .venv/.core
	@$(PYTHON) make_venv.py test
	@touch $@
