"""The parts of `make bench`: what each measures, how load is made, and how results are written and compared.

Entry: `bench/run.py`. Never holds correctness checks; those are tests.
"""
