"""People: access tokens of an OpenID Connect issuer. The meaning of claims is pure; the keys come from a provider."""
