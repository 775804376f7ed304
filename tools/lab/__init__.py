"""A lab of several hosts on one machine, to test what is disaggregated (docs/lab.md)."""

from tools.lab.hosts import Hosts, LabError, RayHost
from tools.lab.lab import Lab, LabHost, why_no_lab
from tools.lab.loopback import LoopbackHost, LoopbackLab

__all__ = ["Hosts", "Lab", "LabError", "LabHost", "LoopbackHost", "LoopbackLab", "RayHost", "why_no_lab"]
