"""One connection to one host, on which commands run as byte streams. `open.py` is the way in."""
