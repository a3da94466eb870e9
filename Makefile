# Launch Bound. `make demo` shows what it is; `make test` proves it. Both set up .venv themselves.
#
# Where PYTHON's torch sees a GPU, .venv borrows that Python's packages, and neither `make demo` nor
# `make gpu` downloads anything. Elsewhere pip fills .venv. `make clean` lets you choose again.

PYTHON ?= python3
VENV := .venv$(TORCH:%=-%)
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1

SEES_GPU := -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2> /dev/null
CORE = $(shell $(PYTHON) -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*(line.split(">")[0] for line in p["dependencies"] + p["optional-dependencies"]["labs"]))')
LACKING := -c 'import sys, importlib.util as u; lacking = [name for name in sys.argv[1:] if not u.find_spec(name)]; \
	sys.exit(f"$(PYTHON) lacks {lacking}: install them there, or name another PYTHON" if lacking else 0)'
# A borrowed package keeps its version. editable_mode=compat: one line with this folder's path.
PIP = PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile \
	--config-settings editable_mode=compat $$(test -e $(VENV)/.borrowed || echo -c constraints.txt)
# pip compiles nothing (--no-compile), and three workers would each compile what all of them import.
COMPILE = PYTHONDONTWRITEBYTECODE= $(BIN)/python -c 'import torch._dynamo, pytest; pytest.main(["--collect-only"])' > /dev/null
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadgroup

.PHONY: help demo labs notebooks book test slow gpu figures clean

help:  ## What can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 11

demo: .venv/.core  ## Run the main job; ARGS="--help" tells the options
	$(BIN)/python -m mini_engine demo $(ARGS)

labs: .venv/.core  ## Where you stand in the labs, and the next step
	@./lab

notebooks: .venv/.notebooks  ## Open the notebooks in JupyterLab; ARGS="--no-browser" prints the address only
	PYTHONPATH="$(CURDIR)" $(BIN)/python -m jupyterlab notebooks --MappingKernelManager.root_dir="$(CURDIR)" $(ARGS)

book: .venv/.test  ## Build the site into out/book; ARGS="--serve" shows it on localhost:8000
	$(BIN)/python -m course.site $(ARGS)

ifdef TORCH
test: $(VENV)/.test
	$(PYTEST) $(wildcard tests/cuda tests/bench) $(ARGS)
else
test: .venv/.test  ## Lint, types and the whole suite; TORCH=2.11: the tests of the CUDA wing on that torch
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(COMPILE) & $(BIN)/mypy; status=$$?; wait; exit $$status
	$(PYTEST) $(ARGS)
endif

slow: $(VENV)/.test  ## The property tests with 1,000 examples each, and every mutant of the labs
	HYPOTHESIS_PROFILE=slow $(PYTEST) $(ARGS)

gpu:  ## On a machine with an NVIDIA GPU: measure it, test on it; PYTHON=python3 names its Python
	@python=$$(test -x $(BIN)/python && echo $(BIN)/python || echo $(PYTHON)); $$python $(SEES_GPU) || \
		{ echo "make gpu: $$python has no torch that sees an NVIDIA GPU. Name a Python that has one: make clean, then make gpu PYTHON=/path/to/python3. To rehearse on a CPU: make test, then .venv/bin/python -m mini_engine gpu --device cpu"; exit 2; } >&2
	@$(MAKE) --no-print-directory .venv/.core
	$(BIN)/python -m mini_engine gpu $(ARGS)

figures: .venv/.core  ## Draw the pictures of the README and of the chapters again
	$(BIN)/python -m mini_engine demo
	cp out/timeline.png course/figures/
	$(BIN)/python -m course.draw

clean:  ## Remove .venv, caches and out/
	rm -rf .venv .venv-* out .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info

# Where PYTHON is a virtual environment itself, --system-site-packages names the packages of the
# Python beneath it, so a .pth file names those of PYTHON.
$(VENV)/.core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$$($(PYTHON) --version) is too old: Launch Bound needs Python 3.11 or newer, try make PYTHON=python3.12"; exit 2; } >&2
	@test -e $@ || test -n "$(TORCH)" || ! $(PYTHON) $(SEES_GPU) || { \
		$(PYTHON) -m venv --system-site-packages --without-pip $(VENV) && \
		$(PYTHON) -c 'import site; print(*site.getsitepackages(), sep="\n")' > $$(echo $(VENV)/lib/python3*/site-packages)/borrowed.pth && \
		echo $(PYTHON) > $(VENV)/.borrowed && \
		echo ".venv borrows the packages of $(PYTHON), whose torch sees a GPU"; }
	@test -x $(BIN)/python || $(PYTHON) -m venv --upgrade-deps $(VENV)  # an old pip is slow
	@if test -e $(VENV)/.borrowed; then $(BIN)/python $(LACKING) $(CORE); else $(PIP) $(CORE); fi
	@touch $@

$(VENV)/.test: $(VENV)/.core
	@$(PIP) -e ".[test]" $(TORCH:%="torch==%.*")
	@touch $@

.venv/.notebooks: .venv/.core
	@$(PIP) -e ".[notebooks]"
	@touch $@
