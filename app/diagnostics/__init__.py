"""Statistics and checks for operators: size of the data, fitness of the machine, consistency of the data.

Public API: `service` and `schemas`. It reads the tables of every capability and writes none.
"""
