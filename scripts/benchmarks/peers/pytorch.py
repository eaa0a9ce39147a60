"""The jobs of `peers.py` in PyTorch, eager or compiled; networks are timm's."""

import timm  # pyright: ignore[reportMissingImports]
import torch  # pyright: ignore[reportMissingImports]
from protocol import PRODUCTS, Job, Made, product_operations, serve
from torch.nn import functional as F  # pyright: ignore[reportMissingImports]

VERSIONS = {"versions": f"torch {torch.__version__}, timm {timm.__version__}"}


def network(job: Job):
    """Returns timm's network with the weights shared by all frameworks, under a plan if there is one."""
    torch.set_num_threads(job.threads)
    job.mark("imported")
    model = timm.create_model(job.model, num_classes=job.classes, checkpoint_path=job.weights, **job.sizes)
    if job.plan:
        import pytorch_plan  # pyright: ignore[reportMissingImports]

        plan = pytorch_plan.read_plan(job.plan, model.patch_embed.num_patches, len(model.blocks))
        model = pytorch_plan.Planned(model, plan)
    job.mark("built")
    return model


def tensor(job: Job):
    """Returns the images as a PyTorch tensor in NCHW."""
    return torch.from_numpy(job.images()).permute(0, 3, 1, 2).contiguous()


def forward(job: Job) -> Made:
    """Classifies a batch."""
    model, images = network(job).eval(), tensor(job)
    model = torch.compile(model, options=job.options) if job.compiled else model

    def run():
        with torch.inference_mode():
            return model(images).numpy()

    return run, VERSIONS


def mae(job: Job) -> Made:
    """Takes one optimizer step of masked pre-training."""
    import torch_baseline

    torch.set_num_threads(job.threads)
    decoder = {"ddim": "decoder_embed_dim", "ddepth": "decoder_depth", "dheads": "decoder_num_heads"}
    sizes = {ours: job.decoder[theirs] for ours, theirs in decoder.items() if theirs in job.decoder}
    model = torch_baseline.MAE(**job.baseline, **sizes)
    return _step(job, model, lambda model, images, labels: model(images))


def finetune(job: Job) -> Made:
    """Takes one optimizer step of a classifier."""
    return _step(job, network(job).train(), lambda model, images, labels: F.cross_entropy(model(images), labels))


def _step(job: Job, model, loss) -> Made:
    images, labels = tensor(job), torch.from_numpy(job.labels())
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.05, fused=True)
    model = torch.compile(model) if job.compiled else model

    def run():
        adamw.zero_grad(set_to_none=True)
        loss(model, images, labels).backward()
        adamw.step()

    return run, VERSIONS


def products(job: Job) -> Made:
    """Computes large matrix products."""
    torch.set_num_threads(job.threads)
    x = torch.randn(job.side, job.side) / job.side**0.5

    def run():
        y = x
        for _ in range(PRODUCTS):
            y = y @ y

    return run, {"operations": product_operations(job.side)}


def copy(job: Job) -> Made:
    """Reads a large array and writes another."""
    torch.set_num_threads(job.threads)
    x, y = torch.zeros(job.copied // 4), torch.zeros(job.copied // 4)

    def run():
        y.copy_(x)

    return run, {"moved": 2 * job.copied}


def jpeg(job: Job) -> Made:
    """Reads a batch of pictures as in training or in evaluation, depending on `plan`."""
    from torchvision import datasets, transforms  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    bicubic = transforms.InterpolationMode.BICUBIC
    if job.plan == "train":
        views = [transforms.RandomResizedCrop(job.side, interpolation=bicubic)]
    else:
        views = [transforms.Resize(int(job.side / 0.875), interpolation=bicubic), transforms.CenterCrop(job.side)]
    folder = datasets.ImageFolder(job.folder, transforms.Compose([*views, transforms.PILToTensor()]))
    loader = torch.utils.data.DataLoader(folder, job.batch, shuffle=job.plan == "train", drop_last=True)
    batches = (images for _ in iter(int, 1) for images, _ in loader)

    def run():
        next(batches)

    return run, VERSIONS


if __name__ == "__main__":
    serve({job.__name__: job for job in (forward, mae, finetune, products, copy, jpeg)})
