"""From a config to what a task needs: images, networks, a training run, a report."""
