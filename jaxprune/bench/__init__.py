"""Benchmarks of plans: cost, speed, and measured against theoretical speed-up."""
