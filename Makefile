# One environment for everything; it is rebuilt when the pins or the package's metadata change.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
LIGHT  := $(VENV)/.light

# Python may keep its bytecode: the tests start hundreds of processes, and to compile PyTorch takes longer than to load it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-all random core gpu lint docs dist verify pins audit

setup: $(READY)

# What the demo needs: the pins of `.[lab]`. Every file is checked against its hash while it is installed, uv's own first.
$(LIGHT): pyproject.toml constraints.hashes.txt
	$(PYTHON) -m venv $(VENV)
	sed -n '/^uv==/,/[^\]$$/p' constraints.hashes.txt > $(VENV)/uv.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.txt
	@echo "Installing 89 packages into $(VENV): 6.1 GB, of which 5.5 are PyTorch with CUDA"
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --constraint constraints.hashes.txt \
	    --build-constraints constraints.hashes.txt -e '.[lab]'
	touch $@

# The rest, for tests, documentation and plug-ins, in the same environment.
$(READY): $(LIGHT)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --require-hashes \
	    --build-constraints constraints.hashes.txt -r constraints.hashes.txt
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

demo: $(LIGHT)
	$(BIN)/autowarm compare --task examples/own_task_first_loop.py:FirstLoop --out runs/demo

# A file's tests stay together, so that what they share is made once; the small files come last and even out.
PYTEST := -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# What a change is tried with, in minutes.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) -m "not long"

# Beyond `make test`: what takes long, and the core's arithmetic on the instructions of an old processor. A third worker
# keeps two cores busy, for many long tests wait for processes of their own.
test-all: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) -n 3 -m "long and not generated"
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 $(MAKE) core PYTHON=$(BIN)/python CORE="$(NUMERICS)" ASKED="not long"

# The thousands of random cases of which the others try a few.
random: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) -m generated

# What torch and numpy alone are enough for, in an environment of the caller's: make core PYTHON=python
CORE := tests/geometry tests/orthogonalize tests/logs tests/optim tests/schedule tests/smoothness tests/theory
# What of it another processor's instructions can change: sums and products in another order.
NUMERICS := tests/geometry $(addprefix tests/orthogonalize/test_,iterate.py singular.py) \
            $(addprefix tests/optim/step/test_,adamw_part.py batched.py reference.py tensor_kinds.py) \
            tests/optim/test_together.py \
            tests/smoothness/test_probe.py tests/lab/training/test_sharpness.py tests/theory/test_problems.py
ASKED := not generated
core:
	OMP_NUM_THREADS=1 $(PYTHON) $(PYTEST) -m "$(ASKED)" $(CORE) \
	    --ignore tests/others/test_known.py --ignore tests/optim/model/test_partition_of_families.py

# Whatever needs a GPU, with the caller's PyTorch: make gpu PYTHON=python; with DRY=1 on tiny shapes without one. With
# PROGRAMME=1, what the warm-up is worth at 124M parameters instead: at most ten minutes of it, from where it stopped.
gpu:
	PYTHONPATH=src $(PYTHON) benchmarks/gpu$(if $(PROGRAMME),_programme).py $(if $(DRY),--dry-run)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html
	@echo docs/_build/html/index.html

# What is published: built, checked as the index checks it, and installed and imported without its extras.
dist: $(READY)
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/uv tool run --quiet twine==6.2.0 check --strict dist/*
	$(BIN)/uv run --quiet --isolated --no-project --python $(BIN)/python --with dist/*.whl \
	    python -W error -c "import autowarm; print('autowarm', autowarm.__version__)"

# Every pinned package again, each file against its hash; nothing is replaced if one differs.
verify: $(READY)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --reinstall --require-hashes \
	    --build-constraints constraints.hashes.txt -r constraints.hashes.txt
	@echo every file matches constraints.hashes.txt

# Renews the pins, one version for every Python, and their hashes; `make setup` refuses files with others.
pins: $(READY)
	echo uv | $(BIN)/uv pip compile pyproject.toml - --extra lab --extra test --extra lint --extra docs --universal \
	    --fork-strategy fewest --python-version 3.11.5 --upgrade --no-annotate --no-header --no-emit-index-url \
	    --generate-hashes -o constraints.hashes.txt
	grep -o '^[a-z0-9.-]*==[^ ]*' constraints.hashes.txt | LC_ALL=C sort > constraints.txt

# The pins against the package index's list of known vulnerabilities; what cannot be looked up is no pass.
audit: $(READY)
	@$(BIN)/uv tool run --quiet pip-audit==2.10.1 --strict --disable-pip --require-hashes --progress-spinner off \
	    -r constraints.hashes.txt \
	    || { echo "make audit: a pin is vulnerable, or the list cannot be reached; see above" >&2; exit 1; }
