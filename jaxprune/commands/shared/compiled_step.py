"""A training step that was compiled for described devices: a row of the table, and its words."""

import dataclasses
from collections.abc import Sequence

from jaxprune.accelerators import Costs, Target
from jaxprune.accelerators.chips import GIB
from jaxprune.report.table import as_text, column


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """A row of the table: a training step on one topology.

    Attributes:
      setting: what is set otherwise than in the config, as arguments of the command; "" for the config itself.
      batch: images of a step, on all chips.
      rows: images a chip.
      refused: GiB that it needs where it does not fit, as far as the compiler says; None where it fits.
      hours: of an epoch, by the estimated time of a step.
      price: of an epoch, at the price of a chip hour that was given.
    """

    task: str = column("task")
    target: str = column("compiled for")
    setting: str = column("setting")
    mesh: str = column("mesh")
    dtype: str = column("dtype")
    batch: int = column("batch")
    rows: int = column("batch a chip")
    fits: bool = column("fits", default=False)
    refused: float | None = column("needs", "GiB", default=None)
    images_per_second: float | None = column("images a second a chip", default=None)
    hours: float | None = column("an epoch", "h", default=None)
    price: float | None = column("price of an epoch", default=None)
    costs: Costs | None = None

    @property
    def title(self) -> str:
        """What is set otherwise than in the config, in short."""
        return self.setting.replace("--config.", "") or "as configured"


def text_of(compiled: Sequence[CompiledStep], target: Target) -> str:
    """The result for a terminal: whether the step fits in one line, then memory, work and communication."""
    row = compiled[0]
    title = f"{row.task} on {target} ({target.chips} x {target.chip.title}), {row.dtype}, {row.mesh}"
    lines = [f"{title}: {verdict(compiled, target)}"]
    step = next((row for row in compiled if row.costs is not None), None)
    if step is None:
        return lines[0]
    costs: Costs = step.costs
    if step.setting:
        lines.append(f"\nWith {step.setting}:")
    parts = ("arguments", "outputs", "temporaries", "code", "total")
    memory = [{"memory a chip": name, "GiB": getattr(costs, name)} for name in parts]
    of_cycles = f"{costs.mcycles:.4g} million cycles of the compiler's estimate at {target.chip.hertz / 1e9:g} GHz"
    source = of_cycles if costs.cycles else "roofline of each kernel, as this compiler estimates no cycles"
    paid = "" if step.price is None else f", {step.price:,.4g} at the price given"
    lines += [
        "",
        as_text(memory),
        f"of {costs.available:.2f} GiB",
        "",
        f"matrix products   {costs.tflop:.4g} TFLOP a chip",
        f"moved by kernels  {costs.moved:.4g} GiB a chip",
        f"estimated time    {costs.ms:.4g} ms a step, {step.images_per_second:,.0f} images a second a chip",
        f"                  ({source};",
        "                  without communication; nothing ran on a device)",
        f"share of peak     {costs.share:.1%} of {target.chip.flops / 1e12:g} TFLOP/s",
        f"an epoch          {step.hours:,.4g} hours{paid}",
        "",
    ]
    sent = [
        {"communication a chip": kind, "count": count, "MiB": size / 2**20}
        for kind, (count, size) in costs.collectives.items()
    ]
    if not sent:
        return "\n".join([*lines, "no communication between chips"])
    away = f" and {costs.sent_away:.4g} GiB to other slices" if costs.sent_away else ""
    published = (
        f"sent by a chip    {costs.sent:.4g} GiB{away}: {costs.communication:.4g} ms at the published bandwidths,\n"
        "                  part of which runs beside the computation"
    )
    return "\n".join([*lines, published, "", as_text(sent)])


def verdict(compiled: Sequence[CompiledStep], target: Target) -> str:
    """Whether the step that was asked for fits, and what else does, in one sentence or two."""
    first, *savers = compiled
    step = f"a step of {first.batch} images, {first.rows} a chip,"
    if first.fits:
        return f"{step} fits."
    size = "more" if first.refused is None else f"{first.refused:.2f} GiB"
    able = [
        f"with {row.setting} ({row.costs.total:.2f} GiB, {row.images_per_second:,.0f} images/s a chip)"
        for row in savers
        if row.costs
    ]
    remedy = f". It fits {', or '.join(able)}." if able else "; nothing that was tried fits."
    return f"{step} does not fit ({size} of {target.memory / GIB:.2f}){remedy}"
