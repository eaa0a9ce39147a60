"""Keeps the files of one network, under one plan, in a directory."""

import json
from pathlib import Path

from jaxprune.errors import UserError, shortened
from jaxprune.files import make_directory, read_text, write_atomically

RECORD = "exported.json"


def claim(workdir: Path, network: str, plan: str) -> None:
    """Makes a directory for the files of a network, or checks that those in it are of the same one.

    Args:
      network: where it comes from.
      plan: that it follows, as text.

    Raises:
      UserError: the directory holds the files of another network, or of another plan.
    """
    path, record = make_directory(workdir) / RECORD, {"network": network, "plan": plan}
    if path.is_file():
        try:
            earlier = json.loads(read_text(path))
            about = f"{earlier['network']} ({earlier['plan']})"
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = shortened(error)
            raise UserError(f"{path} cannot be read ({why}): delete it, or give another --workdir.") from error
        if earlier != record:
            raise UserError(
                f"{workdir} holds the files of {about}, which those of {network} ({plan}) would replace: give another "
                "--workdir."
            )
    write_atomically(path, json.dumps(record, indent=2) + "\n")
