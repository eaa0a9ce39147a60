"""Measures: arrays to numbers, such as overlap, similarity, and rank correlation."""
