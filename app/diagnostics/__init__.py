"""Figures and checks for operators: how much there is, whether the machine is fit, whether the data is consistent.

Public API: `service` and `schemas`. It reads the tables of every capability and writes none.
"""
