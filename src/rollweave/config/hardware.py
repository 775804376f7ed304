"""The hardware catalogue: what a device class can do and what it costs, each number with its source.

A cluster file names a class from here (`device: H20`) or describes one of its own; `rollweave profile` measures one.
Numbers are peaks from data sheets: how much of a peak real software reaches is one set of constants for everybody
(`simulation/costs/constants.py`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from rollweave.config.base import Section
from rollweave.config.measured import Measured

NonNegative = Annotated[float, Field(ge=0.0)]

ROLLART = "RollArt, Table 2"
ROLLMUX = "RollMux, Table 1"
ASSUMED_PRICE = "price: our assumption, of the order of public on-demand lists; set it in the cluster file"


class Device(Section):
    """A class of devices, per device."""

    name: str
    kind: Literal["gpu", "cpu", "function"] = "gpu"
    tflops: PositiveFloat
    """Dense 16-bit matrix arithmetic (32-bit on CPUs), peak."""
    bandwidth: PositiveFloat
    """TB/s of its memory, peak."""
    memory: PositiveFloat
    """GB."""
    link: PositiveFloat
    """GB/s between devices of one machine, as tensor parallelism uses them."""
    network: PositiveFloat = 50.0
    """GB/s between machines of one cluster (50: InfiniBand of 400 Gbit/s)."""
    price: NonNegative
    """US dollars per device and hour."""
    devices_per_node: Annotated[int, Field(ge=1)] = 8
    compute_efficiency: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Share of the peak that generation reaches; none: that of the constants. `rollweave profile` measures it."""
    bandwidth_efficiency: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """The same of the bandwidth."""
    training_efficiency: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Share of the peak that training reaches; none: that of the constants."""
    step_overhead: NonNegative | None = None
    """Seconds that an engine step takes beside arithmetic and memory; none: that of the constants."""
    measured: Measured | None = None
    """Times that `rollweave profile` found for one model; they come before everything above."""
    source: str = ""
    """Where the numbers come from."""


DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        Device(
            name="H20",
            tflops=148.0,
            bandwidth=4.0,
            memory=96.0,
            link=900.0,
            price=1.85,
            source=f"{ROLLART}; price: {ROLLMUX}",
        ),
        Device(
            name="H800",
            tflops=989.5,
            bandwidth=3.35,
            memory=80.0,
            link=400.0,
            price=5.28,
            source=f"{ROLLART}; price: {ROLLMUX}",
        ),
        Device(
            name="H100",
            tflops=989.5,
            bandwidth=3.35,
            memory=80.0,
            link=900.0,
            price=5.28,
            source="NVIDIA H100 SXM data sheet; price: that of the H800, which it differs from by its links only",
        ),
        Device(
            name="H200",
            tflops=989.5,
            bandwidth=4.8,
            memory=141.0,
            link=900.0,
            price=6.0,
            source=f"NVIDIA H200 SXM data sheet; {ASSUMED_PRICE}",
        ),
        Device(
            name="A100",
            tflops=312.0,
            bandwidth=2.039,
            memory=80.0,
            link=600.0,
            network=25.0,
            price=2.5,
            source=f"NVIDIA A100 80GB SXM data sheet; {ASSUMED_PRICE}",
        ),
        Device(
            name="L40S",
            tflops=362.0,
            bandwidth=0.864,
            memory=48.0,
            link=64.0,
            network=25.0,
            price=1.5,
            source=f"NVIDIA L40S data sheet (link: PCIe 4.0 x16, both ways); {ASSUMED_PRICE}",
        ),
        Device(
            name="CPU",
            kind="cpu",
            tflops=0.165,
            bandwidth=0.013,
            memory=12.0,
            link=13.0,
            network=3.0,
            price=0.04,
            devices_per_node=2,
            source=f"one core with AVX-512, float32, measured on the machine this was developed on; {ASSUMED_PRICE}",
        ),
        Device(
            name="serverless",
            kind="function",
            tflops=989.5,
            bandwidth=3.35,
            memory=80.0,
            link=400.0,
            price=5.28,
            source="an H800 by the second: the papers do not say what their functions run on or cost",
        ),
    )
}
