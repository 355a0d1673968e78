"""Prepares the documentation site: `make docs` builds it into `build/docs/site`.

The pages are the Markdown files of the repository, as they are. `python -m scripts.site` copies them into one tree,
leads their links to the copies, and adds the pages that are generated: the API reference from `openapi/openapi.json`,
the settings by group from `app/settings`. It takes the navigation from `docs/index.md`. Zensical renders the tree and
checks every link.
"""
