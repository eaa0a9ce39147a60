"""Builds what a task needs from its config: images, networks, a training run, a report."""
