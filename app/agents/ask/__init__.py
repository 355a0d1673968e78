"""`ask_agent`: a chat model that answers from the memory of the caller, with the tools it was granted.

Public API: `service`.
"""
