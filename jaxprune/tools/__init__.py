"""Command-line tools: `jaxprune-convert`, `jaxprune-prepare`."""
