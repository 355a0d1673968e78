"""Small messages between the processes of an installation.

Public API: `messages` (the `Message` and `Bus` types), `notify` and `nats` (the two buses). A message may be lost:
the database is the source of truth, and readers catch up from its rows.
"""
