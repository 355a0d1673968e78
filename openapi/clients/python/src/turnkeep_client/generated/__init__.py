"""Generated from openapi/openapi.json by `make clients`. Do not edit."""
