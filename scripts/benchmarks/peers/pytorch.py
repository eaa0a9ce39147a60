"""The jobs of `peers.py` in PyTorch, eager or compiled; networks are timm's, and transformers' for pixels."""

import torch  # pyright: ignore[reportMissingImports]
from protocol import PRODUCTS, Job, Made, product_operations, serve
from torch.nn import functional as F  # pyright: ignore[reportMissingImports]


def versions(*libraries) -> dict[str, str]:
    """Returns the versions of PyTorch and of the libraries that it runs with."""
    return {"versions": ", ".join(f"{library.__name__} {library.__version__}" for library in (torch, *libraries))}


def network(job: Job):
    """Returns timm's network with the weights shared by all frameworks, under a plan if there is one, and versions."""
    import timm  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(job.threads)
    job.mark("imported")
    model = timm.create_model(job.model, num_classes=job.classes, checkpoint_path=job.weights, **job.sizes)
    if job.plan:
        import pytorch_plan  # pyright: ignore[reportMissingImports]

        plan = pytorch_plan.read_plan(job.plan, model.patch_embed.num_patches, len(model.blocks))
        model = pytorch_plan.Planned(model, plan)
    job.mark("built")
    return model, versions(timm)


def tensor(job: Job):
    """Returns the images as a PyTorch tensor in NCHW."""
    return torch.from_numpy(job.images()).permute(0, 3, 1, 2).contiguous()


def forward(job: Job) -> Made:
    """Classifies a batch."""
    model, facts = network(job)
    model, images = model.eval(), tensor(job)
    model = torch.compile(model, options=job.options) if job.compiled else model

    def run():
        with torch.inference_mode():
            return model(images).numpy()

    return run, facts


def mae(job: Job) -> Made:
    """Takes one optimizer step of masked pre-training."""
    import torch_baseline

    torch.set_num_threads(job.threads)
    decoder = {"ddim": "decoder_embed_dim", "ddepth": "decoder_depth", "dheads": "decoder_num_heads"}
    sizes = {torch_name: job.decoder[jax_name] for torch_name, jax_name in decoder.items() if jax_name in job.decoder}
    model = torch_baseline.MAE(**job.baseline, **sizes)
    return _step(job, model, lambda model, images, labels: model(images)), versions()


def finetune(job: Job) -> Made:
    """Takes one optimizer step of a classifier."""
    model, facts = network(job)
    return _step(job, model.train(), lambda model, images, labels: F.cross_entropy(model(images), labels)), facts


def of_pixels(job: Job, *, auxiliary: bool):
    """Returns transformers' UPerNet on BEiT, its ViTDet, or SegViT on timm's ViT, new weights; and the versions."""
    torch.set_num_threads(job.threads)
    if job.head == "segvit":
        return segvit(job)
    import transformers  # pyright: ignore[reportMissingImports]

    sizes = {"hidden_size": "embed_dim", "num_hidden_layers": "depth", "num_attention_heads": "num_heads"}
    common = {hf_name: job.arguments[jax_name] for hf_name, jax_name in sizes.items()}
    common |= {"image_size": job.side, "patch_size": job.arguments["patch_size"], "drop_path_rate": 0.0}
    common["intermediate_size"] = 4 * common["hidden_size"]
    depth = common["num_hidden_layers"]
    if job.head:
        indices = [round(share * depth / 12) for share in (4, 6, 8, 12)]
        heads = {"out_indices": indices, "use_auxiliary_head": auxiliary, "num_labels": job.classes}
        # As UPerNet of BEiT and MAE: tables of relative positions by block, no absolute positions.
        beit = transformers.BeitConfig(**common, **heads, use_relative_position_bias=True, layer_scale_init_value=1.0)
        return transformers.BeitForSemanticSegmentation(beit), versions(transformers)
    everywhere = {(part + 1) * depth // 4 - 1 for part in range(4)}
    vitdet = transformers.VitDetConfig(
        **common,
        pretrain_image_size=job.arguments.get("pretrain_img_size", 224),
        window_size=job.arguments.get("window_size", 14),
        window_block_indices=[layer for layer in range(depth) if layer not in everywhere],
        use_relative_position_embeddings=True,
    )
    return transformers.VitDetModel(vitdet), versions(transformers)


def segvit(job: Job):
    """Returns SegViT on timm's ViT, with new weights, and the versions."""
    import timm  # pyright: ignore[reportMissingImports]
    from pytorch_segvit import SegViT  # pyright: ignore[reportMissingImports]

    encoder = timm.create_model(job.model, num_classes=0, global_pool="", **job.sizes)
    encoder.norm = torch.nn.Identity()
    return SegViT(encoder, job.classes, encoder.embed_dim // 2, job.head_heads), versions(timm)


def maps(job: Job) -> Made:
    """Computes the classes of all pixels, or the map that a detector reads."""
    model, facts = of_pixels(job, auxiliary=False)
    model, images = model.eval(), tensor(job)
    parameters = sum(array.numel() for array in model.parameters())
    model = torch.compile(model) if job.compiled else model

    def run():
        with torch.inference_mode():
            if not job.head:
                return model(images).last_hidden_state
            if job.head == "segvit":
                return model(images)
            return F.interpolate(model(images).logits, images.shape[2:], mode="bilinear", align_corners=False)

    return run, {"parameters": parameters, **facts}


def maps_step(job: Job) -> Made:
    """Takes one optimizer step of UPerNet, or of a backbone on the mean square of its map."""
    model, facts = of_pixels(job, auxiliary=True)
    classes = torch.from_numpy(job.label_maps())

    def loss(model, images, _):
        # Given label maps, transformers upsamples the logits and adds .4 of the auxiliary loss.
        return model(images, labels=classes).loss if job.head else model(images).last_hidden_state.square().mean()

    parameters = sum(array.numel() for array in model.parameters())
    return _step(job, model.train(), loss), {"parameters": parameters, **facts}


def _step(job: Job, model, loss):
    images, labels = tensor(job), torch.from_numpy(job.labels())
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.05, fused=True)
    model = torch.compile(model) if job.compiled else model

    def run():
        adamw.zero_grad(set_to_none=True)
        loss(model, images, labels).backward()
        adamw.step()

    return run


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
    import torchvision  # pyright: ignore[reportMissingImports]
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

    return run, versions(torchvision)


if __name__ == "__main__":
    serve({job.__name__: job for job in (forward, mae, finetune, maps, maps_step, products, copy, jpeg)})
