"""The jobs of `peers.py` in ONNX Runtime, on files written by this library."""

from protocol import Job, Made, serve


def write(job: Job) -> Made:
    """Writes a network with the weights shared by all frameworks, under a plan if there is one; needs jax2onnx."""
    import ours

    from jaxprune import export

    verification = export.onnx(ours.networks(job), job.file, inputs="normalized")
    return (lambda: None), {"difference": verification.difference}


def forward(job: Job) -> Made:
    """Classifies a batch."""
    import onnxruntime  # pyright: ignore[reportMissingImports]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job.threads
    options.log_severity_level = 3
    job.mark("imported")
    session = onnxruntime.InferenceSession(job.file, options, providers=["CPUExecutionProvider"])
    job.mark("built")
    fed = {"images": job.images()}
    return (lambda: session.run(["logits"], fed)[0]), {"versions": f"onnxruntime {onnxruntime.__version__}"}


if __name__ == "__main__":
    serve({job.__name__: job for job in (write, forward)})
