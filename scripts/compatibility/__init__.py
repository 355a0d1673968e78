"""Compares the OpenAPI document with those of earlier releases, and finds what breaks their clients.

`openapi/released` has the document of each release. `exceptions.toml` beside them lists the breaking changes that were
made on purpose, each with its reason. `make openapi-changes` fails on a change that is not listed, and on an entry that
no change needs any more.
"""
