"""Webhooks: deliveries of events to receivers of a tenant over HTTP, signed, in order, at least once.

Public API: `service` (webhooks and their deliveries), `outbox` (the packages below record events in it) and `dispatch`
(the loop that sends). It has ids of what happened and never content; what is sent is read when it is sent.
"""
