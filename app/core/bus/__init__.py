"""Small messages between the processes of an installation.

Public API: `messages` (what a message and a bus are), `notify` and `nats` (the two buses). A message may be lost:
rows in the database are the truth, and readers catch up from them.
"""
