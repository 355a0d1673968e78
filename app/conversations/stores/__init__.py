"""Queries of this capability, one module per subject. Each takes the open transaction first and names the tenant.

They are in one package because turns, streams, summaries and retention read each other's rows.
"""
