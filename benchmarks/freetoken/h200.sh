#!/usr/bin/env bash
# FreeToken with our hooks on a GPU, measured straight and through the router: the table, a long conversation, the costs.
#
#   bash benchmarks/freetoken/h200.sh WHEELS STAGE...      stages: env tiny mid chunk hybrid queue big
#
# WHEELS holds what the machine's Python lacks (FreeToken, transformers and what they need; nothing is downloaded).
# Figures go to $OUT.
set -u
HERE=$(cd "$(dirname "$0")" && pwd); ROOT=$(cd "$HERE/../.." && pwd)
WHEELS=$1; shift
WORK=${WORK:-/tmp/freetoken-bench}; OUT=${OUT:-$WORK/out}; PORT=19300
mkdir -p "$OUT" "$WORK"
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
export FREETOKEN_KERNEL_CACHE_DIR=$WORK/kernels PYTHONPATH=$WORK/site:$ROOT
[ -d /usr/local/cuda ] && export CUDA_HOME=/usr/local/cuda
if [ ! -f "$WORK/site/.done" ]; then
  python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$WORK/site" "$WHEELS"/*.whl && touch "$WORK/site/.done" || exit 1
fi
cli() { python3 -c "from router.cli import main; main()" "$@"; }
say() { echo "[$(date +%T)] $*"; }

model() { [ -f "$WORK/$1-$2/config.json" ] || python3 "$HERE/make_model.py" "$WORK/$1-$2" --kind "$1" --size "$2" 2>&1 | tail -1; }

up() { # URL SECONDS
  python3 - "$1" "$2" <<'P'
import sys, time, urllib.request
end = time.time() + float(sys.argv[2])
while time.time() < end:
    try:
        answer = urllib.request.urlopen(sys.argv[1], timeout=3)
        body = answer.read()
        if answer.status == 200 and b'"error"' not in body and b'"loading"' not in body and (b'"ok"' in body or body == b"ok\n"): sys.exit(0)
    except OSError: pass
    time.sleep(0.5)
sys.exit(1)
P
}

start() { # NAME MODEL [FreeToken's arguments]; our own in HOOKS, the router's in ROUTE
  NAME=$1; local path=$2; shift 2; PORT=$((PORT + 10))
  # shellcheck disable=SC2086
  setsid python3 -c "from router.cli import main; main()" engine freetoken ${HOOKS:-} -- serve --model "$path" --host 127.0.0.1 --port $PORT \
    --attention-backend triton --num-tokens 65536 --max-running-requests 16 --enable-cache-report "$@" > "$WORK/$NAME-engine.log" 2>&1 &
  ENGINE=$!
  if ! up http://127.0.0.1:$PORT/health 240; then say "$NAME: the engine is not up"; tail -25 "$WORK/$NAME-engine.log"; stop; return 1; fi
  python3 -c "from router.cli import main; main()" serve --upstream http://127.0.0.1:$PORT --port $((PORT + 500)) --admin-port $((PORT + 501)) --require-ack > "$WORK/$NAME-router.log" 2>&1 &
  ROUTER=$!
  up http://127.0.0.1:$((PORT + 501))/readyz 20 || { say "$NAME: the router is not ready"; cat "$WORK/$NAME-router.log"; }
}

stop() { kill "${ROUTER:-0}" 2>/dev/null; kill -TERM -- -"$ENGINE" 2>/dev/null; sleep 3; kill -KILL -- -"$ENGINE" 2>/dev/null; wait 2>/dev/null; ROUTER=; }

table() { # LENGTHS LOADED_CHATS ROTATION CONVERSATION
  say "$NAME: table"
  timeout 240 python3 -c "from router.cli import main; main()" verify --engine http://127.0.0.1:$PORT --router http://127.0.0.1:$((PORT + 500)) \
    --lengths "$1" --chat-load "$2" --rotation "$3" --long-context "$4" --json "$OUT/$NAME.json" 2>&1
  curl -s http://127.0.0.1:$PORT/logprob-router/metrics > "$WORK/$NAME-metrics.txt"; grep -v "^#" "$WORK/$NAME-metrics.txt"
}

for stage in "$@"; do say "== $stage"; case $stage in
  env) nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
       python3 -c "import torch, triton, transformers, freetoken; print('torch', torch.__version__, 'triton', triton.__version__, 'transformers', transformers.__version__, 'freetoken', freetoken.__version__)"
       cli engine freetoken --check;;
  tiny) model dense tiny; start tiny "$WORK/dense-tiny" --cuda-graph-max-bs 0 && { table 60,300,513 3 0 6000; stop; };;
  mid) model dense mid
       start mid "$WORK/dense-mid" --cuda-graph-max-bs 16 && { table 60,300,512,513,819,820,4096 3 2000 30000; say "chat latency, one decode step after each read"; python3 "$HERE/itl.py" http://127.0.0.1:$((PORT + 500)) | tee "$OUT/mid-itl-yield1.txt"; stop; }
       HOOKS="--read-decode-yield 0"; start mid-noyield "$WORK/dense-mid" --cuda-graph-max-bs 16 && { say "chat latency, none"; python3 "$HERE/itl.py" http://127.0.0.1:$((PORT + 500)) | tee "$OUT/mid-itl-yield0.txt"; stop; }; HOOKS=;;
  chunk) model dense mid; start chunk "$WORK/dense-mid" --cuda-graph-max-bs 0 --max-prefill-length 1024 && { table 1500,4096 3 0 0; stop; };;
  hybrid) model hybrid mid; start hybrid "$WORK/hybrid-mid" --cuda-graph-max-bs 0 --max-running-requests 4 && { table 60,300,513,820,4096 3 2000 30000; stop; };;
  queue) model dense mid; ROUTE="--reads-in-flight 8"
       for steps in 0 1 4; do HOOKS="--read-decode-yield $steps"
         start queue-$steps "$WORK/dense-mid" --cuda-graph-max-bs 16 && { say "chat latency, 8 reads in FreeToken's queue, $steps decode steps"; python3 "$HERE/itl.py" http://127.0.0.1:$((PORT + 500)) --seconds 4 | tee "$OUT/queue-itl-yield$steps.txt"; stop; }
       done; HOOKS=; ROUTE=;;
  big) model dense big; start big "$WORK/dense-big" --cuda-graph-max-bs 16 && { table 60,300,4096 3 2000 0; stop; };;
esac; done
say done
