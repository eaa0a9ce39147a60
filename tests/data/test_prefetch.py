"""Worker processes read the same stream as threads."""

import pytest
from pictures import break_files
from streams import assert_equal, take

from jaxprune.data.loader import train_batches
from jaxprune.data.source_factory import create_source
from jaxprune.preprocessing import Preprocessing


@pytest.mark.slow
def test_worker_processes_read_the_same_stream(folder):
    break_files(folder / "ant" / "003.png", folder / "cow" / "000.png")
    options = {"batch_size": 4, "preprocessing": Preprocessing((24, 24)), "seed": 0}
    alone, helped = (create_source("folder", path=str(folder), in_memory=False) for _ in range(2))
    expected = take(train_batches(alone, **options), 6)
    assert_equal(expected, take(train_batches(helped, **options, num_workers=2), 6))
    assert alone.broken == helped.broken and len(helped.broken) == 2
