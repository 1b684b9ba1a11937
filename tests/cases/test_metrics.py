"""Metrics, M01-M09: closed labels, true outcomes, and gauges that come back."""

from __future__ import annotations

import asyncio
import json
import random
import sys

from tests.support.answers import (
    LAST_CHUNK,
    STREAM_HEAD,
    chunk,
    engine,
    held,
    in_turn,
    json_message,
    play,
    silent,
    stream,
)
from tests.support.client import GEN, GEN_BODY, READ1, READ1_BODY, STREAM, Client, completions, get, post, request
from tests.support.routers import ROOT, InProcess, Samples, assert_healthy, eventually, running
from tests.support.upstream import Upstream

OUTCOMES = {"ok", "client_gone", "upstream_error", "upstream_aborted", "timeout", "rejected"}


async def flood(router: InProcess, requests: list[bytes], lanes: int = 8) -> None:
    """Send many requests over a few connections."""

    async def lane(share: list[bytes]) -> None:
        async with await Client.connect(router.port) as client:
            for data in share:
                await client.ask(data)

    await asyncio.gather(*(lane(requests[n::lanes]) for n in range(lanes)))


async def test_m01_paths_are_no_labels(router: InProcess, upstream: Upstream) -> None:
    """M01: 1500 random paths leave no more series than one for `other`."""
    await router.ask(get("/first"))
    before = (await router.settled()).count
    chance = random.Random(1)
    await flood(router, [get(f"/v1/{chance.getrandbits(64):x}/{n}?q={n}") for n in range(1500)])
    samples = await router.settled()
    assert samples.count == before
    assert samples.labels("requests_total", "route") == {"other"}
    assert samples.sum("requests_total", route="other") == 1501


async def test_m02_methods_are_no_labels(router: InProcess, upstream: Upstream) -> None:
    """M02: invented methods are refused by the parser, registered ones pass; neither makes a series."""
    await router.ask(get("/x"))
    before = (await router.settled()).count
    for number in range(100):
        assert (await router.ask(request(f"FOO{number}", "/x"))).status == 400
    for method in ("PURGE", "MKCOL", "LINK", "SEARCH", "REPORT"):
        assert (await router.ask(request(method, "/x"))).status == 200
    assert (await router.settled()).count == before
    assert len(upstream.requests) == 6


async def test_m03_models_are_bounded_labels(upstream: Upstream) -> None:
    """M03: only the engine's own models are labels; 1000 invented ones, and one of 1 MB, are `other`."""
    upstream.models = ["m", "lora-a"]
    async with running(upstream) as router:
        await router.ask(READ1)
        invented = [json.dumps({"model": f"x{n}", "prompt": "p"}).encode() for n in range(1000)]
        invented.append(json.dumps({"model": "y" * (1 << 20), "prompt": "p"}).encode())
        await flood(router, [post("/v1/completions", body) for body in invented])
        await router.ask(completions(model="z" * 1000))
        await router.ask(completions(model="lora-a"))
        samples = await router.settled()
        assert samples.labels("requests_total", "model") == {"m", "lora-a", "other"}
        assert samples.labels("reads_total", "model") == {"m", "lora-a", "other"}
        assert len(samples.text) < 1 << 20


async def test_m04_one_process_only() -> None:
    """M04: one lane for each engine is one process: --workers is refused, with what to do instead."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from router.cli import main; main()", "serve"),
        *("--upstream", "http://127.0.0.1:9", "--workers", "3"),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert process.returncode == 2
    assert b"--workers" in said
    assert b"one router beside each engine" in said


async def test_m05_missing_details_are_no_eviction(router: InProcess, upstream: Upstream) -> None:
    """M05: answers without cached-token details count as unknown, never as an eviction."""
    messages = [{"role": "user", "content": "word " * 200}]
    usage = {"prompt_tokens": 200, "completion_tokens": 1, "total_tokens": 201}
    upstream.handler = play(json_message({"choices": [], "usage": usage}))
    for _ in range(3):
        body = json.dumps({"model": "m", "messages": messages}).encode()
        assert (await router.ask(post("/v1/chat/completions", body))).status == 200
        messages += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "more"}]
    samples = await router.settled()
    assert samples.sum("prefix_evictions_total") == 0
    assert samples.sum("prefix_lost_tokens_total") == 0
    assert samples.sum("prefix_unknown_total") >= 1


async def test_m06_the_engines_metrics_stay_in_reach(router: InProcess, upstream: Upstream) -> None:
    """M06, D7: /metrics and /health on the data port are the engine's bytes; the router's are on the admin port."""
    own = b"vllm:num_requests_running 0\n"
    upstream.on("/metrics", play(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(own) + own))
    upstream.on("/health", play(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
    assert (await router.ask(get("/metrics"))).body == own
    assert (await router.ask(get("/health"))).body == b""
    assert (await router.ask(get("/livez"))).json() == {"ok": True}
    admin = await router.admin("/metrics")
    assert b"logprob_router_build_info" in admin.body
    assert (await router.admin("/livez")).status == 200
    assert (await router.admin("/v1/models")).status == 404
    assert json.loads((await router.admin("/lane")).body)["isolation"] == "engine"


async def test_m07_gauges_come_back_and_are_never_negative(router: InProcess, upstream: Upstream) -> None:
    """M07: 500 mixed calls with random disconnects; no gauge is ever below 0, and all end at 0."""
    upstream.handler = held(0.005)
    chance = random.Random(7)
    kinds = [READ1, GEN, get("/v1/models"), completions(prompt=["a", "b", "c"]), post("/v1/files", b"x" * 5000)]
    seen: list[Samples] = []

    async def call() -> None:
        data = chance.choice(kinds)
        async with await router.connect() as client:
            if chance.random() < 0.1:
                await client.send(data[: chance.randrange(len(data))])
                return
            await client.send(data)
            if chance.random() < 0.5:
                await asyncio.sleep(chance.random() * 0.1)
                if chance.random() < 0.5:
                    client.reset()
            else:
                await client.answer()

    async def watch() -> None:
        while True:
            seen.append(await router.metrics())
            await asyncio.sleep(0.05)

    watching = asyncio.create_task(watch())
    for _ in range(10):
        await asyncio.gather(*(call() for _ in range(50)))
    watching.cancel()
    assert len(seen) > 3
    assert all(value >= 0 for samples in seen for value in samples.gauges().values())
    assert upstream.max_reads_overlap == 1
    await assert_healthy(router)
    await eventually(lambda: all(e.pool.open_connections <= 60 for e in router.router.endpoints.all))


async def test_m08_every_request_has_one_true_outcome(upstream: Upstream) -> None:
    """M08: ok, upstream_error, upstream_aborted, client_gone, timeout and rejected are told apart, and add up."""
    async with running(upstream, read_timeout=0.3, max_queued_reads=0) as router:
        expected = dict.fromkeys(OUTCOMES, 0)

        async def make(outcome: str, handler: object, data: bytes) -> None:
            upstream.handler = handler  # type: ignore[assignment]
            expected[outcome] += 1
            if outcome == "client_gone":
                async with await router.connect() as client:
                    arrived = len(upstream.requests)
                    await client.send(data)
                    await upstream.arrival(arrived + 1)
            else:
                await router.ask(data)
            samples = await router.settled()
            counts = {name: samples.sum("requests_total", outcome=name) for name in OUTCOMES}
            assert counts == expected, (outcome, data)

        broken = play(STREAM_HEAD, chunk(b"data: 1\n\n"), "reset")
        for data in (READ1, GEN, get("/x")):
            await make("ok", engine, data)
            await make("upstream_error", play(json_message({}, 400)), data)
            await make("upstream_error", play(json_message({}, 503)), data)
            await make("upstream_error", play("close"), data)
            await make("upstream_aborted", broken, data)
            await make("client_gone", silent, data)
        await make("upstream_error", stream(b'data: {"error":{}}\n\n'), STREAM)
        await make("timeout", silent, READ1)
        upstream.handler = in_turn(silent, engine)
        before = len(upstream.requests)
        first = asyncio.create_task(router.ask(READ1))
        await upstream.arrival(before + 1)
        assert (await router.ask(READ1)).status == 503
        assert (await first).status == 504
        samples = await router.settled()
        assert samples.sum("requests_total", outcome="rejected") == 1
        assert samples.labels("requests_total", "outcome") == OUTCOMES
        assert samples.sum("requests_total") == sum(expected.values()) + 2


async def test_m09_a_list_is_one_request_and_five_reads(router: InProcess, upstream: Upstream) -> None:
    """M09: client requests and reads are counted apart, waiting and engine time too; durations end at the last byte."""
    upstream.handler = held(0.05)
    first, second = await asyncio.gather(
        router.ask(completions(prompt=["a", "b", "c", "d", "e"])), router.ask(completions(prompt="x"))
    )
    assert (first.status, second.status) == (200, 200)
    samples = await router.settled()
    assert samples.sum("requests_total", kind="read") == 2
    assert samples.sum("list_reads_total") == 1
    assert samples.sum("reads_total") == 6
    assert samples.sum("read_engine_seconds_count") == 6
    assert samples.sum("read_queue_wait_seconds_count") == 6
    assert 0.3 <= samples.sum("read_engine_seconds_sum") < 0.6
    assert 0.05 <= samples.sum("read_queue_wait_seconds_sum") < 0.5
    upstream.handler = play(STREAM_HEAD, 0.1, chunk(b"data: 1\n\n"), 0.3, chunk(b"data: 2\n\n"), LAST_CHUNK)
    assert (await router.ask(STREAM)).whole
    samples = await router.settled()
    assert 0.4 <= samples.sum("request_duration_seconds_sum", kind="chat") < 0.8
    assert samples.sum("time_to_first_byte_seconds_sum", kind="chat") < 0.3


async def test_gaps_are_measured_where_reads_wait(router: InProcess, upstream: Upstream) -> None:
    """Section 6 of the design: the endpoint does not sit idle between reads, and the histogram shows it."""
    upstream.handler = held(0.005)
    await asyncio.gather(*(router.ask(READ1) for _ in range(30)))
    samples = await router.settled()
    gaps = samples.sum("read_gap_seconds_count")
    assert gaps >= 25
    assert samples.sum("read_gap_seconds_sum") / gaps < 0.01


async def test_labels_carry_nothing_of_a_client(router: InProcess, upstream: Upstream) -> None:
    """Section 8 of the design: no label has a client's free text."""
    secret = "s3cret"
    for body in (READ1_BODY, GEN_BODY):
        data = body.replace(b'"m"', b'"%b"' % secret.encode())
        await router.ask(post(f"/v1/completions?{secret}", data, f"X-{secret}: {secret}"))
    await router.ask(get(f"/{secret}", f"Authorization: {secret}"))
    assert secret not in (await router.settled()).text
