"""Conversations and their turns: append, stream, read, revise, erase, summarise, subscribe.

Public API: `service` and `schemas`; `live` for subscriptions. Rows never leave this package.

The modules at this level are shared by the sub-packages: `find`, `create` and `change` a conversation, `drafts`
(checked turns that are not stored yet), `views` (rows to schemas), `events` (messages on the bus), `hash_chain`,
`policies`.
"""
