"""Writes the parts of the documents that follow from code: `python -m scripts.reference`, or `make reference`.

A part stands between two comments in its page; the text around it is written by hand. A test of the default suite
compares each page with the code.
"""
