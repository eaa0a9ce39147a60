"""The chips that programs are compiled for, with their published peaks."""

import dataclasses

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """A chip, as JAX counts devices.

    Attributes:
      title: its name for a reader.
      platform: "tpu" or "gpu", as JAX calls it.
      flops: dense bfloat16 operations a second, two for each multiply-add.
      bandwidth: bytes a second between its memory and the chip.
      memory: bytes that programs can use.
      links: bytes a second that a chip sends to the others of its slice or machine.
      network: bytes a second that a chip sends to other slices or machines.
      hertz: clock of its matrix units; 0 where the compiler estimates no cycles.
    """

    title: str
    platform: str
    flops: float
    bandwidth: float
    memory: int
    links: float
    network: float
    hertz: float = 0.0


# Memory: what the TPU compiler reports as available; an H100's is that of the description below. The clocks follow from
# the peaks: 4 matrix units of 128 x 128 in a v5e, 8 in a v5p, and 2 of 256 x 256 with twice the rate in a v6e. Links
# are half of the published bandwidth of both directions. The network is a pod's or a machine's, divided by its chips;
# of a v6e it is taken as four adapters of 200 Gbit/s for eight chips, of an H100 as one of 400 Gbit/s for each.
CHIPS = {
    "v5e": Chip("TPU v5e", "tpu", 197e12, 819e9, int(15.75 * GIB), 200e9, 3.1e9, 1.5e9),
    "v5p": Chip("TPU v5p", "tpu", 459e12, 2765e9, int(95.74 * GIB), 600e9, 6.25e9, 1.75e9),
    "v6e": Chip("TPU v6e", "tpu", 918e12, 1640e9, int(31.25 * GIB), 400e9, 12.5e9, 1.75e9),
    "h100": Chip("NVIDIA H100", "gpu", 989e12, 3352e9, 84_942_979_072, 450e9, 50e9),
}

# What XLA's CUDA compiler asks a device for: an H100 with 80 GB of HBM3.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 84942979072 shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536 registers_per_block_limit: 65536 cuda_compute_capability { major: 9 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
runtime_version { major: 12 minor: 9 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
