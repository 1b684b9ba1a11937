"""Metrics, the prefix ledger, and what the engine itself reports."""
