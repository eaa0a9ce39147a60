"""The parts of networks with exits: what a stage reuses of the one before, and how its images become tokens."""
