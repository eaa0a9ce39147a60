"""How much memory training takes on a CPU: the bound that docs/guides/devices.md states."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BOUND = 7 * 2**30

MEASURED = """
import resource, sys
from jaxprune import main
try:
    main.run()
finally:
    print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts KiB on Linux only")
def test_three_phases_of_photographs_fit_in_seven_gibibytes(tmp_path):
    """ViT-Ti at 224 pixels in batches of 64: what each phase and its compilation leave must not add up."""
    phases = [f"--config.{phase}.{key}" for phase in ("pretrain", "finetune") for key in _SHORT]
    command = ["--config=configs/mim/efficient.py:model=vit_tiny_patch16_224,epochs=1", f"--workdir={tmp_path}"]
    # With huge pages, as the command line runs.
    env = {**os.environ, "XLA_FLAGS": "", "PYTHONPATH": str(ROOT), "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *command, *phases], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert (tmp_path / "complete.json").is_file()
    peak = int(done.stdout.rpartition("peak ")[2])
    print(f"peak {peak / 2**30:.2f} GiB")
    assert peak < BOUND


_SHORT = ("data.source=scenes", "data.num_train=128", "data.num_eval=64", "epochs=1")
