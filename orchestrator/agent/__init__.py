"""The program on the host: supervises workers, outlives the connection that started it.

Standard library only, Python 3.8 or later. On a host the package is called `farbench_agent` and is imported from
one zip; the modules therefore import each other relatively and nothing else of the project.
"""

AGENT_VERSION = "1"
