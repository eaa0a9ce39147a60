"""Shared by the methods, and what puts them into a network: plans, counts, kept and merged tokens."""
