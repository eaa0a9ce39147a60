"""A device whose times are counted, for tests of `tune`: what is cheaper does not depend on how busy a machine is."""

from jaxprune import reduction
from jaxprune.tune import cost_table, whole_networks
from jaxprune.tune.cost_table import Cost, CostTable


def count_seconds(monkeypatch):
    """Lets every network take a second for a million multiply-accumulates of its blocks."""

    def measure(model, methods, batch_size, rounds):
        networks = [model, *(reduction.apply(model, plan) for plan in cost_table.probes(model, methods).values())]
        found = dict.fromkeys(part for network in networks for part in cost_table.parts(network))
        dense = sum(part.macs for part in cost_table.parts(model)) / 1e6
        parts = tuple((part, Cost(part.macs / 1e6, float(part.rows))) for part in found)
        return CostTable(parts, Cost(0.0, 0.0), Cost(dense, 17.0))

    def interleaved(runners, rounds):
        from jaxprune.bench.timing import Turn

        return {name: [Turn(runner.seconds, 0.0)] * rounds for name, runner in runners.items()}

    class Runner:
        program = None

        def __init__(self, model, images):
            self.seconds = sum(part.macs for part in cost_table.parts(model)) / 1e6

    monkeypatch.setattr(cost_table, "measure", measure)
    monkeypatch.setattr(whole_networks, "interleaved", interleaved)
    monkeypatch.setattr(whole_networks, "Runner", Runner)
    monkeypatch.setattr(whole_networks.flops, "temporary_bytes", lambda program: 2**20)
