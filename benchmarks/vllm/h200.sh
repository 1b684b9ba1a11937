#!/usr/bin/env bash
# vLLM with read isolation on a GPU, straight and through the router: the table, a long conversation, the costs.
#
#   bash benchmarks/vllm/h200.sh STAGE...      stages: env mid sync eager stock
#
# vLLM and what it needs are importable already; nothing is downloaded. Figures go to $OUT. FLAGS: more flags of vLLM.
set -u
HERE=$(cd "$(dirname "$0")" && pwd); ROOT=$(cd "$HERE/../.." && pwd)
WORK=${WORK:-/tmp/vllm-bench}; OUT=${OUT:-$WORK/out}; PORT=19600
mkdir -p "$OUT" "$WORK"
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
export VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_HOST_IP=127.0.0.1 GLOO_SOCKET_IFNAME=lo VLLM_USE_FLASHINFER_SAMPLER=0
export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$ROOT
cli() { python3 -c "from router.cli import main; main()" "$@"; }
say() { echo "[$(date +%T)] $*"; }

up() { # URL SECONDS
  for _ in $(seq "$2"); do curl -sf -m 3 "$1" > /dev/null && return 0; kill -0 "$ENGINE" 2>/dev/null || return 1; sleep 1; done
  return 1
}

start() { # NAME [vLLM's arguments]; our own in OURS ("none": vLLM as it comes)
  NAME=$1; shift; PORT=$((PORT + 10))
  local serve="serve $WORK/model --served-model-name m --host 127.0.0.1 --port $PORT --max-model-len 32768 --max-num-batched-tokens 512
    --max-num-seqs 64 --gpu-memory-utilization 0.3 --num-gpu-blocks-override 4000 --enable-prompt-tokens-details --max-logprobs 20 ${FLAGS:-}"
  # shellcheck disable=SC2086
  if [ "${OURS:-}" = none ]; then
    setsid python3 -m vllm.entrypoints.cli.main $serve "$@" > "$WORK/$NAME-engine.log" 2>&1 &
  else
    setsid python3 -c "from router.cli import main; main()" engine vllm ${OURS:-} -- $serve "$@" > "$WORK/$NAME-engine.log" 2>&1 &
  fi
  ENGINE=$!
  if ! up http://127.0.0.1:$PORT/health 200; then
    say "$NAME: the engine is not up"; grep -nE "Error|error|raise" "$WORK/$NAME-engine.log" | tail -15; tail -25 "$WORK/$NAME-engine.log"; stop; return 1
  fi
  grep -E "cheduler|attention backend|Asynchronous|cudagraph" "$WORK/$NAME-engine.log" | cut -c1-220 | head -12
  cli serve --upstream http://127.0.0.1:$PORT --port $((PORT + 500)) --admin-port $((PORT + 501)) > "$WORK/$NAME-router.log" 2>&1 &
  ROUTER=$!
  up http://127.0.0.1:$((PORT + 501))/readyz 20 || { say "$NAME: the router is not ready"; cat "$WORK/$NAME-router.log"; }
}

stop() { kill "${ROUTER:-0}" 2>/dev/null; kill -TERM -- -"$ENGINE" 2>/dev/null; sleep 3; kill -KILL -- -"$ENGINE" 2>/dev/null; wait 2>/dev/null; ROUTER=; }

table() { # LENGTHS LOADED_CHATS ROTATION CONVERSATION
  say "$NAME: table"
  COLUMNS=160 timeout 200 python3 -c "from router.cli import main; main()" verify --engine http://127.0.0.1:$PORT --router http://127.0.0.1:$((PORT + 500)) \
    --lengths "$1" --chat-load "$2" --rotation "$3" --long-context "$4" --json "$OUT/$NAME.json" 2>&1; say "verify ended with $?"
  curl -s http://127.0.0.1:$PORT/metrics | grep -E "^(logprob_router_engine|vllm:num_preemptions)"
}

latency() { say "$NAME: chat latency"; timeout 60 python3 "$ROOT/benchmarks/freetoken/itl.py" http://127.0.0.1:$((PORT + 500)) --seconds 4 2>&1 | tee "$OUT/$NAME-itl.txt"; }

LENGTHS=60,300,512,513,819,820,2048,4096
for stage in "$@"; do say "== $stage"; case $stage in
  env) nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
       python3 -c "import torch, vllm, transformers; print('torch', torch.__version__, 'vllm', vllm.__version__, 'transformers', transformers.__version__)"
       cli engine vllm --check
       [ -f "$WORK/model/config.json" ] || python3 "$ROOT/benchmarks/freetoken/make_model.py" "$WORK/model" --kind dense --size mid 2>&1 | tail -1;;
  mid) start mid && { table $LENGTHS 3 2000 30000; latency; stop; };;
  sync) start sync --no-async-scheduling && { table $LENGTHS 3 0 0; stop; };;
  eager) start eager --enforce-eager && { table $LENGTHS 3 2000 30000; latency; stop; };;
  stock) OURS=none start stock && { latency; stop; };;
esac; done
say done
