"""Names of scorers in plots and pictures, short where the whole text of a scorer has no room."""

import re
from collections import Counter
from collections.abc import Iterable


def short_names(texts: Iterable[str]) -> dict[str, str]:
    """Returns {text of a scorer: its name}, with its options where another scorer has the same name.

    >>> list(short_names(["papr", "cam:run=runs/a", "cam:run=runs/b"]).values())
    ['papr', 'cam:run=a', 'cam:run=b']

    Args:
      texts: as in `checkpoints.scorers.open_scorers`.
    """
    texts = list(texts)
    names = Counter(text.partition(":")[0] for text in texts)
    # Of paths only the last part: directories are long, and scorers that are compared often share them.
    full = {text: re.sub(r"=[^,]*/([^,/]+)", r"=\1", text) for text in texts}
    clashes = {name for name, count in Counter(full.values()).items() if count > 1}
    result = {}
    for text in texts:
        name = text.partition(":")[0]
        result[text] = name if names[name] == 1 else text if full[text] in clashes else full[text]
    return result
