"""Measure, at any engine, whether the same read gives the same bits."""
