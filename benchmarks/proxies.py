"""Starts the proxies that are compared, each in front of the same upstream, each as its documentation says."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    found, at = [pid], 0
    while at < len(found):
        for task in Path(f"/proc/{found[at]}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in task.read_text().split()]
        at += 1
    return found


@dataclass(slots=True)
class Running:
    """A proxy that runs."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    admin_port: int = 0

    def cpu(self) -> float:
        """CPU seconds of the process tree so far, from /proc."""
        total = 0
        for pid in tree(self.process.pid):
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += int(fields[11]) + int(fields[12])
        return total / TICK

    def memory(self) -> float:
        """Resident MB of the process tree."""
        pages = 0
        for pid in tree(self.process.pid):
            with contextlib.suppress(OSError):
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * PAGE / 1e6


NGINX = """daemon off; worker_processes 1; pid {dir}/nginx.pid; error_log {dir}/nginx.err crit;
events {{ worker_connections 8192; }}
http {{ access_log off; keepalive_requests 100000000; client_body_temp_path {dir}; proxy_temp_path {dir};
  upstream u {{ server 127.0.0.1:{upstream}; keepalive 512; keepalive_requests 100000000; }}
  server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ proxy_pass http://u; proxy_http_version 1.1;
    proxy_set_header Connection ""; proxy_buffering off; }} }} }}
"""

NGINX_UPSTREAM = """daemon off; worker_processes 1; pid {dir}/up.pid; error_log {dir}/up.err crit;
events {{ worker_connections 8192; }}
http {{ access_log off; keepalive_requests 100000000; default_type application/json;
  server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ return 200 '{answer}'; }} }} }}
"""

HAPROXY = """global
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 300s
  timeout server 300s
frontend f
  bind 127.0.0.1:{port}
  default_backend b
backend b
  option http-keep-alive
  http-reuse always
  server u 127.0.0.1:{upstream}
"""

ENVOY = """static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: f
          route_config:
            virtual_hosts:
            - {{name: v, domains: ["*"], routes: [{{match: {{prefix: "/"}}, route: {{cluster: u, timeout: 0s}}}}]}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: u
    type: STATIC
    load_assignment:
      cluster_name: u
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {upstream}}}}}}}
"""


def commands(name: str, port: int, upstream: int, admin: int, where: Path) -> list[str] | None:
    """The command line, or None if the program is not installed."""
    values = {"dir": where, "port": port, "upstream": upstream}
    url = f"http://127.0.0.1:{upstream}"
    bin_dir = Path(sys.executable).parent

    def config(text: str, file: str) -> str:
        path = where / f"{port}-{file}"
        path.write_text(text.format(**values))
        return str(path)

    def program(found: str) -> str | None:
        beside = bin_dir / found
        return str(beside) if beside.exists() else shutil.which(found)

    if name == "logprob-router":
        own = os.environ.get("LOGPROB_ROUTER", "logprob-router")
        args = ["serve", "--upstream", url, "--port", str(port), "--admin-port", str(admin), "--engine", "generic"]
        return [own, *args, "--log-level", "error"]
    found = program({"nginx": "nginx", "haproxy": "haproxy", "envoy": "envoy"}.get(name, name))
    if found is None:
        return None
    if name == "nginx":
        return [found, "-c", config(NGINX, "nginx.conf")]
    if name == "haproxy":
        return [found, "-f", config(HAPROXY, "haproxy.cfg")]
    if name == "envoy":
        return [found, "-c", config(ENVOY, "envoy.yaml"), "--concurrency", "1", "--log-level", "error"]
    launch = ["launch"] if name == "sglang-router" else []
    common = ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", url, "--policy", "round_robin"]
    return [found, *launch, *common, "--prometheus-port", str(admin), "--log-level", "error"]


@contextlib.contextmanager
def started(name: str, upstream: int, where: Path) -> Iterator[Running | None]:
    """Start one proxy and wait until it relays; None if it is not installed or does not come up."""
    port, admin = free_port(), free_port()
    command = commands(name, port, upstream, admin, where)
    if command is None:
        yield None
        return
    with open(where / f"{name}.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    running = Running(name, port, process, admin)
    try:
        yield running if _relays(running) else None
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _relays(running: Running) -> bool:
    import http.client

    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and running.process.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=2)
            body = b'{"model":"m","prompt":"x","max_tokens":9}'
            connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
            if connection.getresponse().status == 200:
                return True
        except OSError:
            pass
        time.sleep(0.2)
    return False
