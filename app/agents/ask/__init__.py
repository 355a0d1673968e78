"""`ask_agent`: a chat model that answers from the caller's memory with the tools that are granted to it.

Public API: `service`.
"""
