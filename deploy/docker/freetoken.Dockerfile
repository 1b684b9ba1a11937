# syntax=docker/dockerfile:1
# FreeToken with read isolation, for a GPU machine.
# docker build -f deploy/docker/freetoken.Dockerfile -t logprob-router-freetoken:0.1.0 .
# Its kernels are compiled at the first start, hence the CUDA image with compilers.
ARG BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04
FROM ${BASE}
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv python3-dev g++ \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/engine
ENV PATH=/opt/engine/bin:${PATH} PYTHONUNBUFFERED=1
RUN pip install --no-cache-dir freetoken==0.2.1 ninja==1.13.0
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY router ./router
RUN pip install --no-cache-dir .
USER 10001:10001
WORKDIR /
EXPOSE 8000
ENTRYPOINT ["logprob-router", "engine", "freetoken", "--"]
CMD ["serve", "--model=Qwen/Qwen3-0.6B", "--host=0.0.0.0", "--port=8000"]
STOPSIGNAL SIGTERM
