"""The OpenAPI and AsyncAPI documents and the pages that show them."""
