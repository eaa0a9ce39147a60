"""Contestants in turns: what a plan costs, how fast it is, and whether it keeps what its FLOPs promise."""
