"""farbench: benchmark GPU kernels on remote hosts over SSH, and trust the numbers."""

__version__ = "0.1.0"
