"""Programs beside the runs: `jaxprune-convert`, `jaxprune-prepare`."""
