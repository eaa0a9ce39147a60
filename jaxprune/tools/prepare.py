"""Converts pictures in class directories to a TFDS data set of ArrayRecord files, without TensorFlow.

    jaxprune-prepare --input=cifar10.tar.xz --output=~/tensorflow_datasets --name=cifar10

The input is a directory or an archive (.tar, .tar.gz, .tar.xz, .zip) of `train/<class>/*.jpg`, `test/<class>/*.jpg`, …
or of `<class>/*.jpg`, which makes one split, `train` (hold out a part of it with `train[90%:]`). Broken pictures are
listed, counted and left out. NABirds and NUS-WIDE are taken as they come: their own lists of pictures, splits and
classes are read. Read the result with `--config.data.source=tfds`.
"""

from jaxprune import search_path

if __name__ == "__main__":
    search_path.leave_out_working_directory()  # before a module in it can be imported

import argparse

from jaxprune.data.prepare import prepare
from jaxprune.errors import command


@command
def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", required=True, help="directory or archive of class directories")
    parser.add_argument("--output", required=True, help="directory of TFDS data sets (TFDS's data_dir)")
    parser.add_argument("--name", help="name of the data set; by default made from the input's")
    parser.add_argument("--overwrite", action="store_true", help="replace a data set of this name")
    args = parser.parse_args()
    prepared = prepare(args.input, args.output, name=args.name, overwrite=args.overwrite)
    for path, reason in sorted(prepared.broken.items()):
        print(f"left out: {path}: {reason}")
    counts = ", ".join(f"{count:,} in {split}" for split, count in prepared.num_examples.items())
    print(f"{prepared.path}: {counts}; {len(prepared.class_names)} classes; {len(prepared.broken)} broken left out")


if __name__ == "__main__":
    main()
