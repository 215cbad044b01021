"""`python -m orchestrator` is `farbench`."""

from orchestrator.cli.app import main

main()
