"""The `farbench` command: parse, call, print, exit code."""
