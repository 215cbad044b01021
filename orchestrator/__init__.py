"""farbench: benchmark GPU kernels on remote hosts over SSH, and trust the numbers.

The Python API is `orchestrator.api`: `import orchestrator.api as farbench`. Nothing is loaded here, since the command
starts here too.
"""

__version__ = "0.1.0"
