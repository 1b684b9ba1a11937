"""logprob-router: a reverse-proxy sidecar that makes LLM scoring reproducible."""

__version__ = "0.1.0"
