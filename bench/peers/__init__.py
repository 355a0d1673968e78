"""Other systems that keep memory, each run from an environment of its own, in alternation with Turnkeep.

Entry: `bench/compare.py`. One module per peer: what to install from PyPI, and how to start it. Nothing of a peer is
copied here. `worker.py` and the modules of libraries run inside the peer's environment.
"""
