"""The formats of weights files."""
