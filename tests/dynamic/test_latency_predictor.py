"""The latency predictor equals LAUDNet's simulator, operation by operation and for whole networks."""

import json

import numpy as np
import pytest
from support import golden, golden_names, in_names

from jaxprune.dynamic.latency_predictor import HARDWARE, Hardware, LatencyPredictor, resnet_latency
from jaxprune.errors import UserError

FILES = {name: golden(name) for name in golden_names("dynamic/latency_predictor*")}
DEVICES = [
    (name, device) for name, file in FILES.items() for device in json.loads(str(file["config_json"]))["hardware"]
]


def hardware(file, name):
    config = json.loads(str(file["config_json"]))["hardware"][name]
    return Hardware(
        config["n_pes"],
        config["pe_fp32s"],
        config["frequency"],
        config["mem_bandwidth"],
        config["batch_size"],
        config["latency_mode"],
    )


@pytest.mark.parametrize(("name", "device"), DEVICES)
def test_operations(name, device):
    file = FILES[name]
    predictor = LatencyPredictor(hardware(file, device))
    close = lambda values, key: np.testing.assert_allclose(values[: len(file[key])], file[key], rtol=1e-9, err_msg=key)
    for index, case in enumerate(json.loads(str(file["config_json"]))["cases"]):
        place = f"{device}/case{index}"
        if f"{place}/conv" not in file:
            continue
        inputs, outputs, side, stride = case["cin"], case["cout"], case["h"], case["stride"]
        close(predictor.conv(inputs, outputs, side, 3, stride=stride), f"{place}/conv")
        close(predictor.conv(inputs, outputs, side, 1), f"{place}/conv1x1")
        close(predictor.add(outputs, side), f"{place}/add")
        close(predictor.average_pool(outputs, side), f"{place}/avg_pool")
        for rate in in_names(file, rf"{place}/gather_(.+)"):
            patches = {"granularity": case["granularity"], "rate": float(rate)}
            close(
                predictor.dynamic_conv(inputs, outputs, side, 3, stride=stride, **patches),
                f"{place}/dynamic_conv_{rate}",
            )
            close(predictor.scatter_add(outputs, side, **patches), f"{place}/scatter_add_{rate}")
            close(predictor.gather(inputs, side, **patches), f"{place}/gather_{rate}")


@pytest.mark.parametrize("name", FILES)
def test_networks(name):
    file = FILES[name]
    networks = in_names(file, r"resnet50/(\w+)/([a-z]+)(?:_([\d-]+))?(?:_([\d.]+))?")
    assert networks
    for device, mode, cells, rate in networks:
        # The rate is the only number of a key without cells.
        key = "_".join(filter(None, (f"resnet50/{device}/{mode}", cells, rate)))
        rate, cells = (rate, cells) if mode == "spatial" else (cells or rate, None)
        options = {"granularity": [int(cell) for cell in cells.split("-")]} if cells else {}
        options |= {"rate": float(rate)} if rate else {}
        seconds = resnet_latency(hardware(file, device), mode=mode, **options)
        np.testing.assert_allclose(seconds, file[key], rtol=1e-9, err_msg=key)


def test_the_devices_of_the_paper_are_those_of_the_file():
    for file in FILES.values():
        for device in json.loads(str(file["config_json"]))["hardware"]:
            assert HARDWARE[device] == hardware(file, device)


def test_what_cannot_work_is_refused():
    with pytest.raises(UserError, match="channel"):
        resnet_latency(HARDWARE["nano"], mode="channel")
    with pytest.raises(UserError, match="up to 4 stages, and computes a share from 0 to 1"):
        resnet_latency(HARDWARE["nano"], (1, 1, 1, 1, 1))
    with pytest.raises(UserError, match=r"rate=1\.5: a ResNet"):
        resnet_latency(HARDWARE["nano"], mode="layer", rate=1.5)
    with pytest.raises(UserError, match="4 stages"):
        resnet_latency(HARDWARE["nano"], mode="spatial", granularity=(1,), rate=0.5)
    with pytest.raises(UserError, match="min"):
        LatencyPredictor(HARDWARE["nano"]._replace(combine="min"))
    with pytest.raises(UserError, match=r"rate=0\.5"):
        LatencyPredictor(HARDWARE["nano"]).conv(8, 8, 8, 3, rate=0.5)
