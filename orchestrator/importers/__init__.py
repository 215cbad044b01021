"""Results that other tools measured, taken into the archive as runs: a reader a format, and one way to land what they read.

A reader turns a file into `reading.Found`; it knows nothing of archives. `formats` tells formats apart by content, `land`
makes the run.
"""
