"""Clients of identity providers: the keys of the issuer of access tokens. `tenancy` checks the tokens themselves."""
