"""Audit: which key did what to which object, and when. Never content, and no text of callers.

Public API: `service` (`record`, `AuditTrail`, `AuditSealer`, `verify_audit`) and `schemas`. Entries are inserted in the
transaction that they describe. A job gives them numbers and hashes afterwards: `chain.py` has the form of a hash, and
`verification.py` checks all of them. Names, owners and external ids of callers never belong here.
"""
