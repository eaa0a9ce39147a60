"""Ids of sections and of the elements inside them, which links and labels refer to."""

import itertools
import re


def slugify(title: str) -> str:
    """Returns the id of a section with this title: lower case, words joined by single hyphens."""
    return re.sub(r"[\W_]+", "-", title.casefold()).strip("-") or "section"


class ElementIds:
    """Generates unique ids for the elements of one top-level section.

    Every id starts with the id of that section, which is unique in the report.
    """

    def __init__(self, section_id: str):
        self._section_id = section_id
        self._taken = {section_id}

    def new(self, word: str) -> str:
        """Returns an id that contains `word` and has not been returned before."""
        stem = f"{self._section_id}--{slugify(word)}"  # a section's id never contains two hyphens in a row
        candidates = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
        new_id = next(candidate for candidate in candidates if candidate not in self._taken)
        self._taken.add(new_id)
        return new_id
