"""Queues of calls in front of the chat model's endpoint, and how many calls run at once.

Public API: `endpoint_calls`. No requests are sent here.
"""
