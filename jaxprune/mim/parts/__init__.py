"""The parts of frameworks: maskers, decoders, targets, and what rebuilds thrown patches."""
