"""Whether patterns depend on the class of the image."""

from collections.abc import Sequence

from jaxprune.commands.analyse.page.parts import Rows, add_table, at_one_rate, grouped
from jaxprune.commands.analyse.tables import class_patterns
from jaxprune.commands.analyse.tables.outcomes import name_of
from jaxprune.evaluate.collectors.observations import Observed
from jaxprune.report import Section


def describe(section: Section, rows: Rows, found: Sequence[Observed]) -> None:
    """Adds the classes with the lowest and the highest value of each measure.

    Args:
      section: the section.
      rows: what `class_patterns.class_rows` returned.
      found: all members.
    """
    own, measured = grouped(rows, ("network", "plan")), []
    for observed in at_one_rate([each for each in found if name_of(each) in own]):
        member, labels = observed.member, observed["label"]
        for measure, values in class_patterns.image_values(observed).items():
            of_class = own[name_of(observed)]
            low, high = (choose(of_class, key=lambda row: row[measure]) for choose in (min, max))
            row = {"network": member.network, "plan": member.plan, "measure": measure, "mean": float(values.mean())}
            row |= {"lowest class": f"{low['class']} ({low['images']})", "lowest": low[measure]}
            row |= {"highest class": f"{high['class']} ({high['images']})", "highest": high[measure]}
            if labels.ndim == 1 and (labels >= 0).all() and len(of_class) > 1:
                row["η²"] = class_patterns.explained(values, labels)
                row["η² by chance"] = (len(of_class) - 1) / (len(labels) - 1)
            measured.append(row)
    chance = [row for row in measured if "η²" in row]
    finding = ""
    if chance:
        most = max(chance, key=lambda row: row["η²"] - row["η² by chance"])
        finding = f" Most dependent on the class is {most['measure']} of {most['plan']}: η² is {most['η²']:.2f}, and "
        finding += f"{most['η² by chance']:.2f} by chance."
    several = len(own) > len({(row["network"], row["plan"]) for row in measured})
    add_table(
        section,
        measured,
        "Means over the images of a class, their number in brackets; measures that are the same for all images are "
        "absent. `rows in use`: rows after the last step as a share of the patches; `depth`: blocks that patches pass; "
        "`centre distance`: of kept patches, relative to that of all patches. `η²`: share of the variance between "
        f"images that classes explain.{finding} n = {len(found[0]['index'])} images."
        f"{' Plans of one keep rate are shown.' if several else ''} All classes are in `class_patterns.csv`.",
    )
